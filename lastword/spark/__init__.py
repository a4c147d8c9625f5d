"""TODO map of lastword/spark."""
