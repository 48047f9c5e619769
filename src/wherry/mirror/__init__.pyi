# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .format.fence import MirrorFencedError as MirrorFencedError
from .format.rules import DEFAULT_RULES as DEFAULT_RULES, Rule as Rule
from .mirror_config import MirrorConfig as MirrorConfig
from .report import MirrorReport as MirrorReport
from .writer.mirror import Mirror as Mirror
