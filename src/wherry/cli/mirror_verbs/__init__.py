"""What the commands of ``wherry mirror`` share, and those that have a file of their own."""
