"""TODO map of storage/ledger."""
