"""TODO map of storage/delta."""
