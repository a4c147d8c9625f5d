"""TODO map of streaming/cleaning."""
