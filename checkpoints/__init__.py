"""Where a process stands: the query checkpoints of Spark and whose they are, and the cache of producer states.

`queries` binds checkpoints to topics and says what to do when one is gone; `producer_cache` keeps producer states between processes.
"""
