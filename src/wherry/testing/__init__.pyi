# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .conformance import StoreConformance as StoreConformance
from .faulty import Fault as Fault, FaultyStore as FaultyStore
