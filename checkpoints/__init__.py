"""Where a process stands: the query checkpoints of Spark and whose they are, and the cache of producer states."""
