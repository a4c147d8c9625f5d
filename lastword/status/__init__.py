"""What an operator sees: one status value per log.dir, and every view of it.

```
 standing   the values: log.dir, topics, partitions, queries
 watcher    reads them in the background and keeps a day of history
 troubles   open issues as sentences          health    /healthz and /readyz
 metrics    Prometheus                        drawing   the log as SVG
 server     HTTP: /metrics, /status.json, the status page (templates/, static/); listen parses its address
```
"""
