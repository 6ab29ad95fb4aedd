"""PrimFunc to target code. No graph IR, no search."""
