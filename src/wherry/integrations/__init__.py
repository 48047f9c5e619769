"""Callbacks for the trainers of Lightning and Hugging Face: one line adds wherry to them."""
