"""Streams out of a topic: the tail, its source for Spark, and tables that follow the topic."""
