"""The rules of the log, pure: no Spark, no clock, no I/O, standard library only."""
