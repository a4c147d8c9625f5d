"""TODO map of storage/cleaning."""
