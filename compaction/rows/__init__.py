"""What becomes of a record in a cleaning: the reasons for which it is removed."""
