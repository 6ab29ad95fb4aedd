"""Front ends: models of other formats to `IRModule`."""
