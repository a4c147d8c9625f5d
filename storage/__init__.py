"""The log on Delta: its tables, its snapshots, and every commit to it."""
