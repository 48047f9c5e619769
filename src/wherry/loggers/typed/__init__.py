"""The typed API of ml-starter: a `MultiLogger` takes values, `Sinks` have them written, and two adapters lead to destinations::

from wherry.loggers.typed import DestinationSink, MultiLogger, Sinks

log, sinks = MultiLogger(), Sinks([DestinationSink(logger)])
log.log_scalar("weight_norm", lambda: norm(model))  # computed only if a sink writes
sinks.step(state, log)
"""

from wherry.loggers.typed.destination_sink import DestinationSink
from wherry.loggers.typed.multi import MultiLogger, namespace_context
from wherry.loggers.typed.sink import BaseLogger, BaseLoggerConfig, CollectingLogger
from wherry.loggers.typed.sink_destination import SinkDestination
from wherry.loggers.typed.sinks import Sinks

__all__ = [
    "BaseLogger",
    "BaseLoggerConfig",
    "CollectingLogger",
    "DestinationSink",
    "MultiLogger",
    "SinkDestination",
    "Sinks",
    "namespace_context",
]
