# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .storage_reader import StorageReader as StorageReader
from .storage_writer import StorageWriter as StorageWriter
