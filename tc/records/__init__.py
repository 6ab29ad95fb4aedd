"""Tuning records: on disk, their index, what a workload is known by, and applying them. Nothing here searches."""
