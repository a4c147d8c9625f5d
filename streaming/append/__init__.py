"""TODO map of streaming/append."""
