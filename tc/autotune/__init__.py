"""Everything that searches: tasks, the tuner, the search, cost models, measuring in children, and the report."""
