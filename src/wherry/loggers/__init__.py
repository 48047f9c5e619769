"""Where a training run's logs and files go: destinations, the router in front of them, and what they know of the run.

Importing this package loads neither numpy nor torch nor any vendor library: each name is loaded at its first use, and arrays
and tensors are taken as they come.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.loggers.callback import Callback as Callback
    from wherry.loggers.destination import LoggerDestination as LoggerDestination
    from wherry.loggers.destinations.console import ConsoleLogger as ConsoleLogger
    from wherry.loggers.destinations.console import ConsoleLoggerConfig as ConsoleLoggerConfig
    from wherry.loggers.destinations.file import FileLogger as FileLogger
    from wherry.loggers.destinations.file import FileLoggerConfig as FileLoggerConfig
    from wherry.loggers.destinations.in_memory import InMemoryLogger as InMemoryLogger
    from wherry.loggers.destinations.in_memory import InMemoryLoggerConfig as InMemoryLoggerConfig
    from wherry.loggers.destinations.mirrored_folder import MirrorLogger as MirrorLogger
    from wherry.loggers.destinations.mlflow import MLflowConfig as MLflowConfig
    from wherry.loggers.destinations.mlflow import MLflowLogger as MLflowLogger
    from wherry.loggers.destinations.object_store import ObjectStoreLogger as ObjectStoreLogger
    from wherry.loggers.destinations.progress_bar import ProgressBarLogger as ProgressBarLogger
    from wherry.loggers.destinations.progress_bar import ProgressBarLoggerConfig as ProgressBarLoggerConfig
    from wherry.loggers.destinations.run_folder import RunFolderConfig as RunFolderConfig
    from wherry.loggers.destinations.run_folder import RunFolderLogger as RunFolderLogger
    from wherry.loggers.destinations.tensorboard import TensorBoardConfig as TensorBoardConfig
    from wherry.loggers.destinations.tensorboard import TensorBoardLogger as TensorBoardLogger
    from wherry.loggers.destinations.wandb import WandbConfig as WandbConfig
    from wherry.loggers.destinations.wandb import WandbLogger as WandbLogger
    from wherry.loggers.logger import Logger as Logger
    from wherry.loggers.run.event import Event as Event
    from wherry.loggers.run.level import LogLevel as LogLevel
    from wherry.loggers.run.state import State as State
    from wherry.loggers.run.timestamp import Timestamp as Timestamp
    from wherry.loggers.typed.multi import MultiLogger as MultiLogger
    from wherry.loggers.typed.sink import BaseLogger as BaseLogger
    from wherry.loggers.typed.sink import BaseLoggerConfig as BaseLoggerConfig
    from wherry.loggers.values.text import format_json as format_json
    from wherry.loggers.values.text import format_log_data_value as format_log_data_value

#: Public name -> module.
_HOMES = {
    "BaseLogger": "wherry.loggers.typed.sink",
    "BaseLoggerConfig": "wherry.loggers.typed.sink",
    "Callback": "wherry.loggers.callback",
    "ConsoleLogger": "wherry.loggers.destinations.console",
    "ConsoleLoggerConfig": "wherry.loggers.destinations.console",
    "Event": "wherry.loggers.run.event",
    "FileLogger": "wherry.loggers.destinations.file",
    "FileLoggerConfig": "wherry.loggers.destinations.file",
    "InMemoryLogger": "wherry.loggers.destinations.in_memory",
    "InMemoryLoggerConfig": "wherry.loggers.destinations.in_memory",
    "LogLevel": "wherry.loggers.run.level",
    "Logger": "wherry.loggers.logger",
    "LoggerDestination": "wherry.loggers.destination",
    "MLflowConfig": "wherry.loggers.destinations.mlflow",
    "MLflowLogger": "wherry.loggers.destinations.mlflow",
    "MirrorLogger": "wherry.loggers.destinations.mirrored_folder",
    "MultiLogger": "wherry.loggers.typed.multi",
    "ObjectStoreLogger": "wherry.loggers.destinations.object_store",
    "ProgressBarLogger": "wherry.loggers.destinations.progress_bar",
    "ProgressBarLoggerConfig": "wherry.loggers.destinations.progress_bar",
    "RunFolderConfig": "wherry.loggers.destinations.run_folder",
    "RunFolderLogger": "wherry.loggers.destinations.run_folder",
    "State": "wherry.loggers.run.state",
    "TensorBoardConfig": "wherry.loggers.destinations.tensorboard",
    "TensorBoardLogger": "wherry.loggers.destinations.tensorboard",
    "Timestamp": "wherry.loggers.run.timestamp",
    "WandbConfig": "wherry.loggers.destinations.wandb",
    "WandbLogger": "wherry.loggers.destinations.wandb",
    "format_json": "wherry.loggers.values.text",
    "format_log_data_value": "wherry.loggers.values.text",
}

__all__ = [
    "BaseLogger",
    "BaseLoggerConfig",
    "Callback",
    "ConsoleLogger",
    "ConsoleLoggerConfig",
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
