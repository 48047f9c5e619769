# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .config import AgentConfig as AgentConfig
from .config import Config as Config
from .config import RetryConfig as RetryConfig
from .config import SpoolConfig as SpoolConfig
from .config import TransferConfig as TransferConfig
from .errors import AccessDeniedError as AccessDeniedError
from .errors import AlreadyExistsError as AlreadyExistsError
from .errors import ConfigError as ConfigError
from .errors import IntegrityError as IntegrityError
from .errors import NotFoundError as NotFoundError
from .errors import SpoolError as SpoolError
from .errors import StoreError as StoreError
from .errors import UploadFailed as UploadFailed
from .errors import WherryError as WherryError
from .mirror.mirror_config import MirrorConfig as MirrorConfig
from .mirror.reader.pull import pull as pull
from .mirror.writer.mirror import Mirror as Mirror
from .spool.handle import UploadHandle as UploadHandle
from .spool.journal.jobs import JobState as JobState
from .store import ObjectMeta as ObjectMeta
from .uploader import Uploader as Uploader

__version__: str
