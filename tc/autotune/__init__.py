"""Which schedule is fastest: spaces, features of programs, learned costs, search, measuring and records."""
