"""Saving when the job is told to end: signals, safe points, what arrives in the time that is left."""
