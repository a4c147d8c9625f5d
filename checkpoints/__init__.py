"""Where we are: Spark's query checkpoints and who they belong to."""
