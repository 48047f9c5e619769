"""Accepted work on disk: the folder, its staged files and its journal."""
