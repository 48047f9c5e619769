# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .callback import Callback as Callback
from .callbacks.system_metrics import SystemMetrics as SystemMetrics
from .destination import LoggerDestination as LoggerDestination
from .destinations.console import ConsoleConfig as ConsoleConfig, ConsoleLogger as ConsoleLogger
from .destinations.file import FileConfig as FileConfig, FileLogger as FileLogger
from .destinations.in_memory import InMemoryConfig as InMemoryConfig, InMemoryLogger as InMemoryLogger
from .destinations.mirrored_folder import MirrorLogger as MirrorLogger
from .destinations.mlflow import MLflowConfig as MLflowConfig, MLflowLogger as MLflowLogger
from .destinations.object_store import ObjectStoreLogger as ObjectStoreLogger
from .destinations.progress_bar import ProgressBarConfig as ProgressBarConfig, ProgressBarLogger as ProgressBarLogger
from .destinations.run_folder import RunFolderConfig as RunFolderConfig, RunFolderLogger as RunFolderLogger
from .destinations.tensorboard import TensorBoardConfig as TensorBoardConfig, TensorBoardLogger as TensorBoardLogger
from .destinations.wandb import WandbConfig as WandbConfig, WandbLogger as WandbLogger
from .destinations.webhook import WebhookConfig as WebhookConfig, WebhookLogger as WebhookLogger
from .logger import Logger as Logger
from .run.event import Event as Event
from .run.level import LogLevel as LogLevel
from .run.state import State as State
from .run.timestamp import Timestamp as Timestamp
from .typed.multi import MultiLogger as MultiLogger
from .typed.sink import BaseLogger as BaseLogger, BaseLoggerConfig as BaseLoggerConfig
from .values.text import format_json as format_json, format_log_data_value as format_log_data_value
