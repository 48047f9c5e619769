"""Capturing what the program prints, and calling functions when it ends."""
