"""`wherry::` for fsspec. The class is loaded at its first use: fsspec asks this package for mere names, too."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
