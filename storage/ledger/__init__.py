"""The ledger: a Delta table of decisions, one row each, and what holds today of all that were made."""
