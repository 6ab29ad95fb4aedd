"""Operators: one `OpDef` record each, in a registry."""
