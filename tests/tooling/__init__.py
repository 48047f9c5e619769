"""Tools for those who work on wherry, and their tests."""
