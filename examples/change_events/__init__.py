"""Change events of a PostgreSQL as Debezium recorded them, as typed tables: compared with the database's own rows."""
