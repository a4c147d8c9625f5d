"""Append queries: sources as input rows, and the foreachBatch function that appends them exactly once."""
