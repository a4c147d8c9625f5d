"""What lies where: the columns of the tables, and the folders of a log.dir and of a topic."""
