# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .filesystem import WherryFileSystem as WherryFileSystem
