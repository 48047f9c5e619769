"""Where a training run's logs and files go: destinations, the router in front of them, and what they know of the run.

Importing this package loads neither numpy nor torch; arrays and tensors are taken as they come.
"""

from __future__ import annotations

from wherry.loggers.callback import Callback
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.event import Event
from wherry.loggers.logger import Logger
from wherry.loggers.object_store import ObjectStoreLogger
from wherry.loggers.state import State
from wherry.loggers.timestamp import Timestamp

__all__ = ["Callback", "Event", "Logger", "LoggerDestination", "ObjectStoreLogger", "State", "Timestamp"]
