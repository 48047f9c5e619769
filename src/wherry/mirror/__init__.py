"""A folder of growing files kept equal to a prefix of an object store, and read back from there.

`writer/mirror.py` has the class that users call; `format/layout.py` says what is in the store.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
