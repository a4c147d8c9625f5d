"""How lastword gets a Spark session: the session with its settings, the jars, and S3 options for delta-rs.

```
 installation  whether there is a pyspark, which `pip install lastword` leaves out
 session       spark_session() and SETTINGS       log4j2.properties, fairscheduler.xml are its files
 starting      starts a session, or says what Spark has against its settings
 jars          resolves the jars of jars.lock when they are first needed, by checksum
 package       lastword's own code as a zip, for the executors of a cluster
 object_store  Spark's S3A settings as options of delta-rs
```
"""
