# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .checkpoints.checkpoints import Checkpoints as Checkpoints
from .checkpoints.keep import Keep as Keep
from .checkpoints.protocol.deletion import PruneDelays as PruneDelays
from .config import (
    AgentConfig as AgentConfig,
    Config as Config,
    RetryConfig as RetryConfig,
    SpoolConfig as SpoolConfig,
    TransferConfig as TransferConfig,
)
from .errors import (
    AccessDeniedError as AccessDeniedError,
    AlreadyExistsError as AlreadyExistsError,
    ConfigError as ConfigError,
    IntegrityError as IntegrityError,
    NotFoundError as NotFoundError,
    SpoolError as SpoolError,
    StoreError as StoreError,
    UploadFailed as UploadFailed,
    WherryError as WherryError,
)
from .mirror.mirror_config import MirrorConfig as MirrorConfig
from .mirror.reader.pull import pull as pull
from .mirror.writer.mirror import Mirror as Mirror
from .spool.handle import UploadHandle as UploadHandle
from .spool.journal.jobs import JobState as JobState
from .store import ObjectMeta as ObjectMeta
from .uploader import Uploader as Uploader
from .web.notebook import ui as ui

__version__: str
