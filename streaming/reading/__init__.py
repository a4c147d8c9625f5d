"""TODO map of streaming/reading."""
