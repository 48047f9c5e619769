"""Reading runs: what a run folder, a bucket or a live mirror has of them. Nothing here can write to a store."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
