# The public names, once: `__init__.py` loads each of them from here at its first use, and type checkers read this file.
from .curve import Downsampled as Downsampled, downsample as downsample, smooth as smooth
from .filters import Where as Where, sort_rows as sort_rows
from .records import (
    CheckpointRow as CheckpointRow,
    Histogram as Histogram,
    KeySummary as KeySummary,
    LogChunk as LogChunk,
    MediaItem as MediaItem,
    QueuedUpload as QueuedUpload,
    RunEnvironment as RunEnvironment,
    RunRow as RunRow,
    Series as Series,
    TableInfo as TableInfo,
    TextItem as TextItem,
    Truth as Truth,
    UploadsView as UploadsView,
    Usage as Usage,
    WriterView as WriterView,
)
from .run import Run as Run
from .runs import Runs as Runs
