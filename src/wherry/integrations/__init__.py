"""wherry as one line in other people's trainers: a callback for Lightning, and one for the Hugging Face Trainer."""
