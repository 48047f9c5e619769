"""SystemMetrics: how busy the machine is, among the metrics of the run."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from importlib.util import find_spec

from wherry.errors import ConfigError, MissingExtraError
from wherry.loggers.callback import Callback
from wherry.loggers.callbacks.gpus import Gpus, find_gpus
from wherry.loggers.callbacks.machine import Machine
from wherry.loggers.logger import Logger
from wherry.loggers.run.level import LogLevel
from wherry.loggers.run.state import State
from wherry.posix.fork import call_in_children

log = logging.getLogger("wherry")

#: The first sample is taken so soon, so that short runs have one.
_FIRST_AFTER_S = 1.0
#: How long the close waits for a sample that is being logged. A destination that hangs must not keep it longer.
_CLOSE_S = 5.0


class SystemMetrics(Callback):
    """Logs CPU, memory, disk, network and GPUs every `every_s` seconds, from INIT until the close (extra ``system``)::

        Logger(State(), [RunFolderLogger("runs/{run_name}")], [SystemMetrics()])

    | key | is |
    | --- | --- |
    | ``system/cpu_percent`` | use of all cores of the machine, 0 to 100 |
    | ``system/memory_bytes``, ``system/memory_percent`` | the machine's memory that is not available |
    | ``system/disk_bytes``, ``system/disk_percent`` | what is used of the disk of the working folder |
    | ``system/disk_read_bytes_per_s``, ``..disk_written..`` | traffic of all disks |
    | ``system/network_sent_bytes_per_s``, ``..network_received..`` | traffic of all interfaces but the loopback |
    | ``system/gpu0_percent``, ``system/gpu0_memory_bytes``, ``system/gpu1_..`` | all GPUs, numbered as by ``nvidia-smi`` |
    | ``system/process_cpu_percent``, ``system/process_memory_bytes`` | this process; 100 is one core |

    Percents and rates are means since the sample before. Each rank logs its process, and the first rank of each node the machine.
    They reach the destinations that take metrics of that rank (`LoggerDestination.rank_zero_only`). The level is VERBOSE, so
    neither the console nor a text log shows them by default. The step is that of the last metrics (`Logger.metric_at`).

    One daemon thread samples and logs. Nothing of it is raised into the training: errors are warnings in the log "wherry". A
    forked child logs nothing unless a run begins in it. ConfigError for an `every_s` that is no number above 0;
    MissingExtraError without psutil. Without nvidia-ml-py or a GPU, those keys are missing.
    """

    def __init__(self, every_s: float = 10.0, *, gpus: Callable[[], Gpus] = find_gpus) -> None:
        if isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or not 0 < every_s < math.inf:
            raise ConfigError(f"SystemMetrics: every_s is {every_s!r}: it must be a number of seconds above 0")
        if find_spec("psutil") is None:
            raise MissingExtraError("SystemMetrics needs psutil, which is not installed: pip install 'wherry[system]'")
        self._every_s = float(every_s)
        self._find_gpus = gpus
        self._has_warned = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        call_in_children(self, SystemMetrics._forget_thread)

    def __repr__(self) -> str:
        return f"<SystemMetrics every {self._every_s:g} s>"

    def init(self, state: State, logger: Logger) -> None:
        """Start the thread, once."""
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, args=(state, logger, self._stop), name="wherry-system", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # at the system's limit of threads, or when the interpreter ends
            log.warning("system/ metrics are not logged: %s", error)
        else:
            self._thread = thread

    def close(self, state: State, logger: Logger) -> None:
        """End the thread; a sample that is being logged is waited for, up to 5 s."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._forget_thread()

    def _forget_thread(self) -> None:
        """After the close, and in a forked child, where the thread does not exist."""
        self._thread = None
        self._stop = threading.Event()

    def _run(self, state: State, logger: Logger, stop: threading.Event) -> None:
        try:
            gpus = self._find_gpus()
            machine = Machine(gpus, whole=state.local_rank == 0)
        except Exception as error:  # here the thread ends, and a traceback on stderr would tell nobody what is missing
            log.warning("system/ metrics are not logged: %r", error)
            return
        wait_s = min(self._every_s, _FIRST_AFTER_S)
        while not stop.wait(wait_s):
            wait_s = self._every_s
            try:
                logger.metric_at(None, LogLevel.VERBOSE, machine.sample)
            except Exception as error:  # a destination whose on_error is "raise": the training must not end by this
                if not self._has_warned:
                    self._has_warned = True
                    log.warning("system/ metrics: a destination did not take them: %s", error)
        gpus.close()
