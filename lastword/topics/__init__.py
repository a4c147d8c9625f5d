"""TODO map of lastword/topics."""
