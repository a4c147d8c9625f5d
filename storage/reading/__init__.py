"""TODO map of storage/reading."""
