"""Machine: what this machine and this process use, as psutil and NVML tell."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from wherry.loggers.callbacks.gpus import Gpus

log = logging.getLogger("wherry")

_Group = Callable[[], Mapping[str, float]]


class Machine:
    """Samples this process, and with `whole` the machine around it. For one thread, in the process that made it.

    Percents and rates are means since the sample before; the first sample counts from the beginning. A group of values that
    cannot be read here, as in a container without ``/proc/diskstats``, is left out from then on, with a warning.
    """

    def __init__(self, gpus: Gpus, *, whole: bool = True, now: Callable[[], float] = time.monotonic) -> None:
        import psutil  # late: of the extra

        self._psutil: Any = psutil
        self._now = now
        self._process = psutil.Process()
        self._before: dict[str, tuple[float, int]] = {}
        self._groups: dict[str, _Group] = {"process": self._of_process}
        if whole:
            self._groups |= {
                "CPU": lambda: {"system/cpu_percent": psutil.cpu_percent()},
                "memory": self._memory,
                "disk": self._disk,
                "disk traffic": self._disk_traffic,
                "network": self._network,
            }
        if whole and len(gpus):
            self._groups["GPUs"] = gpus.sample
        self.sample()  # from which the first percents and rates count

    def sample(self) -> dict[str, float]:
        """Key -> value, each key with its unit. Never raises for what cannot be read."""
        found: dict[str, float] = {}
        for name in list(self._groups):
            found.update(self._read(name))
        return found

    def _read(self, name: str) -> Mapping[str, float]:
        try:
            return self._groups[name]()
        except Exception as error:  # of psutil, of the system, of NVML: the others can still be read
            del self._groups[name]
            log.warning("system/ metrics: %s cannot be read here, and is left out: %r", name, error)
            return {}

    def _of_process(self) -> Mapping[str, float]:
        with self._process.oneshot():
            return {
                "system/process_cpu_percent": self._process.cpu_percent(),
                "system/process_memory_bytes": self._process.memory_info().rss,
            }

    def _memory(self) -> Mapping[str, float]:
        memory = self._psutil.virtual_memory()
        return {"system/memory_bytes": memory.total - memory.available, "system/memory_percent": memory.percent}

    def _disk(self) -> Mapping[str, float]:
        disk = self._psutil.disk_usage(".")
        return {"system/disk_bytes": disk.used, "system/disk_percent": disk.percent}

    def _disk_traffic(self) -> Mapping[str, float]:
        # The kernel's counters as they are: nowrap=True would remember those of all disks in psutil for as long as we live.
        counters = self._psutil.disk_io_counters(nowrap=False)
        if counters is None:  # a machine without disks
            return {}
        return self._rates({"disk_read": counters.read_bytes, "disk_written": counters.write_bytes})

    def _network(self) -> Mapping[str, float]:
        counters = self._psutil.net_io_counters(pernic=True, nowrap=False)
        real = [one for name, one in counters.items() if name != "lo"]
        return self._rates(
            {"network_sent": sum(one.bytes_sent for one in real), "network_received": sum(one.bytes_recv for one in real)}
        )

    def _rates(self, totals: Mapping[str, int]) -> Mapping[str, float]:
        """Bytes per second since the call before; none at the first call, and where a counter was set back."""
        now_s = self._now()
        rates: dict[str, float] = {}
        for name, total in totals.items():
            before = self._before.get(name)
            self._before[name] = now_s, total
            if before is not None and now_s > before[0] and total >= before[1]:
                rates[f"system/{name}_bytes_per_s"] = (total - before[1]) / (now_s - before[0])
        return rates
