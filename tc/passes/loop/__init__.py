"""Passes over loop-level functions, one per file."""
