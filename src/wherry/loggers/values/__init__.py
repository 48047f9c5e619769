"""Logged values: one record a kind, their normal form, and how they are encoded."""
