"""TODO map of compaction/config."""
