"""Loop transformations as data: steps, traces, and the rules that choose them."""
