"""Which candidates will be fast: predictions learned from measurements, and how good they are."""
