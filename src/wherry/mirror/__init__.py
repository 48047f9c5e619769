"""A folder of growing files kept equal to a prefix of an object store, and read back from there.

`mirror.py` is the front door; `layout.py` says how it looks in the store.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
