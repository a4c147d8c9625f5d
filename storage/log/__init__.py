"""TODO map of storage/log."""
