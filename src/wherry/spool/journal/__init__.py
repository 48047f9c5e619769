"""Which uploads were accepted and how far each one is: an SQLite database in the spool."""
