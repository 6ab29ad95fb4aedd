"""Measuring: programs timed in turns, what the machine can do at best, and the peers that `tc` is compared with."""
