"""What a loop program costs on a target: its nest as numbers, features of it, and an analytic estimate."""
