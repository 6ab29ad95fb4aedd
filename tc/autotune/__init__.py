"""Which schedule is fastest: spaces, features, cost models, search, measuring and the database of what was found."""
