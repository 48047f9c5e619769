"""Gpus: how busy the GPUs of this machine are, as NVIDIA's library NVML tells."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

log = logging.getLogger("wherry")

#: The driver's own file, which is there exactly where the driver runs.
_DRIVER = Path("/dev/nvidiactl")


class Gpus:
    """The GPUs that `nvml`, an initialised module as ``pynvml``, shows. Their numbers are those of ``nvidia-smi``."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        n = 0 if nvml is None else nvml.nvmlDeviceGetCount()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(n)]

    def __len__(self) -> int:
        return len(self._handles)

    def sample(self) -> dict[str, float]:
        """Use in percent and memory in bytes of each. What one does not tell is left out: MIG hides the use of a divided GPU."""
        found: dict[str, float] = {}
        for i, handle in enumerate(self._handles):
            self._add(found, f"system/gpu{i}", handle)
        return found

    def _add(self, found: dict[str, float], key: str, handle: Any) -> None:
        try:
            found[f"{key}_memory_bytes"] = self._nvml.nvmlDeviceGetMemoryInfo(handle).used
            found[f"{key}_percent"] = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        except self._nvml.NVMLError as error:
            log.debug("%s: %s", key, error)

    def close(self) -> None:
        """Release the library. Again: nothing."""
        nvml, self._nvml, self._handles = self._nvml, None, []
        if nvml is None:
            return
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:  # the driver is gone, so there is nothing to release
            log.debug("NVML: %s", error)


def find_gpus(driver: Path = _DRIVER) -> Gpus:
    """The GPUs of this machine; none without a driver. If there is a driver and no nvidia-ml-py, a warning says so."""
    if not driver.exists():
        return Gpus()
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        log.warning("there is a GPU, and its use is not logged: pip install 'wherry[system]', which has nvidia-ml-py")
        return Gpus()
    try:
        nvml.nvmlInit()
        return Gpus(nvml)
    except nvml.NVMLError as error:
        log.warning("the use of the GPUs is not logged, as NVML says: %s", error)
        return Gpus()
