"""The parts of ``wherry checkpoints``."""
