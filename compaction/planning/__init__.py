"""TODO map of compaction/planning."""
