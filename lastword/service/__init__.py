"""TODO map of lastword/service."""
