"""TODO map of lastword/cli."""
