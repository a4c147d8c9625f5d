"""TODO map of storage/files."""
