"""One file a destination, and what they have in common."""
