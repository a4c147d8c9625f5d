"""The log as metadata: `segments` and when they close, and which table versions the newest one stands on after RESTOREs (`restores`)."""
