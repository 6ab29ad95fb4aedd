"""Compiled code against the reference interpreter."""
