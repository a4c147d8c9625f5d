"""TODO map of storage/append."""
