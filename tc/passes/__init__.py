"""Rewrites: graph to graph, graph to loops, loops to loops."""
