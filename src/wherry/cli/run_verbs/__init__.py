"""The verbs of the command that look at runs."""
