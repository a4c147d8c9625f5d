"""The streaming queries: sources, the appender, and what listens to them."""
