"""TODO map of compaction/log."""
