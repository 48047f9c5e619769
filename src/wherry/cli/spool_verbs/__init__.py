"""The commands about the spool that have files of their own."""
