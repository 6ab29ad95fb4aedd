"""Which candidates there are, and which of them to measure next."""
