"""What a tuning run did, as one page."""
