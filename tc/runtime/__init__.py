"""Artifacts to something callable. The only place with pointers."""
