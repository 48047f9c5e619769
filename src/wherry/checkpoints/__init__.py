"""Checkpoint sets: what a training job saves at a step, complete and proven, or not there for readers at all."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
