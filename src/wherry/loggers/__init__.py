"""Where a training run's logs and files go: destinations, the router in front of them, and what they know of the run.

Importing this package loads neither numpy nor torch nor any vendor library: each name is loaded at its first use, and arrays
and tensors are taken as they come.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.loggers.adapters import DestinationSink as DestinationSink
    from wherry.loggers.adapters import SinkDestination as SinkDestination
    from wherry.loggers.callback import Callback as Callback
    from wherry.loggers.console import ConsoleLogger as ConsoleLogger
    from wherry.loggers.console import ConsoleLoggerConfig as ConsoleLoggerConfig
    from wherry.loggers.destination import LoggerDestination as LoggerDestination
    from wherry.loggers.event import Event as Event
    from wherry.loggers.file import FileLogger as FileLogger
    from wherry.loggers.file import FileLoggerConfig as FileLoggerConfig
    from wherry.loggers.format import format_json as format_json
    from wherry.loggers.format import format_log_data_value as format_log_data_value
    from wherry.loggers.in_memory import InMemoryLogger as InMemoryLogger
    from wherry.loggers.in_memory import InMemoryLoggerConfig as InMemoryLoggerConfig
    from wherry.loggers.level import LogLevel as LogLevel
    from wherry.loggers.logger import Logger as Logger
    from wherry.loggers.mirror import MirrorLogger as MirrorLogger
    from wherry.loggers.mlflow import MLflowConfig as MLflowConfig
    from wherry.loggers.mlflow import MLflowLogger as MLflowLogger
    from wherry.loggers.multi import MultiLogger as MultiLogger
    from wherry.loggers.multi import Sinks as Sinks
    from wherry.loggers.object_store import ObjectStoreLogger as ObjectStoreLogger
    from wherry.loggers.progress import ProgressBarLogger as ProgressBarLogger
    from wherry.loggers.progress import ProgressBarLoggerConfig as ProgressBarLoggerConfig
    from wherry.loggers.run_folder import RunFolderConfig as RunFolderConfig
    from wherry.loggers.run_folder import RunFolderLogger as RunFolderLogger
    from wherry.loggers.state import State as State
    from wherry.loggers.tensorboard import TensorBoardConfig as TensorBoardConfig
    from wherry.loggers.tensorboard import TensorBoardLogger as TensorBoardLogger
    from wherry.loggers.timestamp import Timestamp as Timestamp
    from wherry.loggers.typed import BaseLogger as BaseLogger
    from wherry.loggers.typed import BaseLoggerConfig as BaseLoggerConfig
    from wherry.loggers.typed import CollectingLogger as CollectingLogger
    from wherry.loggers.wandb import WandbConfig as WandbConfig
    from wherry.loggers.wandb import WandbLogger as WandbLogger

#: Public name -> module.
_HOMES = {
    "BaseLogger": "wherry.loggers.typed",
    "BaseLoggerConfig": "wherry.loggers.typed",
    "Callback": "wherry.loggers.callback",
    "CollectingLogger": "wherry.loggers.typed",
    "ConsoleLogger": "wherry.loggers.console",
    "ConsoleLoggerConfig": "wherry.loggers.console",
    "DestinationSink": "wherry.loggers.adapters",
    "Event": "wherry.loggers.event",
    "FileLogger": "wherry.loggers.file",
    "FileLoggerConfig": "wherry.loggers.file",
    "InMemoryLogger": "wherry.loggers.in_memory",
    "InMemoryLoggerConfig": "wherry.loggers.in_memory",
    "LogLevel": "wherry.loggers.level",
    "Logger": "wherry.loggers.logger",
    "LoggerDestination": "wherry.loggers.destination",
    "MLflowConfig": "wherry.loggers.mlflow",
    "MLflowLogger": "wherry.loggers.mlflow",
    "MirrorLogger": "wherry.loggers.mirror",
    "MultiLogger": "wherry.loggers.multi",
    "ObjectStoreLogger": "wherry.loggers.object_store",
    "ProgressBarLogger": "wherry.loggers.progress",
    "ProgressBarLoggerConfig": "wherry.loggers.progress",
    "RunFolderConfig": "wherry.loggers.run_folder",
    "RunFolderLogger": "wherry.loggers.run_folder",
    "SinkDestination": "wherry.loggers.adapters",
    "Sinks": "wherry.loggers.multi",
    "State": "wherry.loggers.state",
    "TensorBoardConfig": "wherry.loggers.tensorboard",
    "TensorBoardLogger": "wherry.loggers.tensorboard",
    "Timestamp": "wherry.loggers.timestamp",
    "WandbConfig": "wherry.loggers.wandb",
    "WandbLogger": "wherry.loggers.wandb",
    "format_json": "wherry.loggers.format",
    "format_log_data_value": "wherry.loggers.format",
}

__all__ = [
    "BaseLogger",
    "BaseLoggerConfig",
    "Callback",
    "CollectingLogger",
    "ConsoleLogger",
    "ConsoleLoggerConfig",
    "DestinationSink",
    "Event",
    "FileLogger",
    "FileLoggerConfig",
    "InMemoryLogger",
    "InMemoryLoggerConfig",
    "LogLevel",
    "Logger",
    "LoggerDestination",
    "MLflowConfig",
    "MLflowLogger",
    "MirrorLogger",
    "MultiLogger",
    "ObjectStoreLogger",
    "ProgressBarLogger",
    "ProgressBarLoggerConfig",
    "RunFolderConfig",
    "RunFolderLogger",
    "SinkDestination",
    "Sinks",
    "State",
    "TensorBoardConfig",
    "TensorBoardLogger",
    "Timestamp",
    "WandbConfig",
    "WandbLogger",
    "format_json",
    "format_log_data_value",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
