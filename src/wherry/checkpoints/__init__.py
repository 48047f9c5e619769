"""Checkpoint sets: what a training job saves at a step, complete and proven, or not there for readers at all."""
