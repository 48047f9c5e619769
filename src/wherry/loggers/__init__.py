"""Where a training run's logs and files go: destinations, the router in front of them, and what they know of the run.

Importing this package loads neither numpy nor torch nor any vendor library: each name is loaded at its first use, and arrays
and tensors are taken as they come.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
