"""Callbacks that come with wherry."""
