"""What is logged, in one form a kind, and what destinations make of it."""
