"""TODO map of compaction/rows."""
