"""Tools for tests of your own: a conformance suite for stores, and a store that fails by plan."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
