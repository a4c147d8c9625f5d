"""What an operator sees: standings, metrics, the drawn log, the status page and the live table."""
