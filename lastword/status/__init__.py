"""What an operator sees: one status value per log.dir, and every view of it.

```
 standing   the values: log.dir, topics, partitions, queries
 watcher    reads them in the background
 samples    a day of samples, also in a file             trends     what the samples mean: rates and levels over hours
 topic_settings   settings of a topic, defaults marked   records    a look at records and keys, within limits
 topic_list   which topics the overview shows, and in which order
 troubles   open issues as sentences          health    /healthz and /readyz
 metrics    Prometheus                        drawing   the log as SVG    charts   trends and removed records as SVG
 server     HTTP: /metrics, /status.json, the status page (templates/, static/); listen parses its address
```
"""
