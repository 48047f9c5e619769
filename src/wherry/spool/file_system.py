"""The file system under a spool, and what is wrong with it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from wherry.spool.spool import Spool

log = logging.getLogger("wherry")

#: SQLite's write-ahead log does not work over these (https://sqlite.org/wal.html), or they lose their files at a reboot.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "lustre", "beegfs", "ceph"}
_VOLATILE = {"tmpfs", "ramfs"}
_warned: set[Path] = set()


def file_system(spool: Spool) -> str:
    """The type of file system under the spool (``ext4``, ``tmpfs``, ...); empty where it cannot be told."""
    try:
        device = os.stat(spool.inside()).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                if left.split()[2] == wanted:
                    return right.split()[0]
    except OSError:
        return ""
    return ""


def warn_of_file_system(spool: Spool) -> None:
    """Log the warnings, once for a spool in this process."""
    if spool.folder not in _warned:
        _warned.add(spool.folder)
        for text in file_system_warnings(spool):
            log.warning("%s", text)


def file_system_warnings(spool: Spool) -> list[str]:
    """Warnings for the user: what can go wrong with a spool on this file system."""
    kind = file_system(spool)
    if kind in _NETWORK or kind.startswith("fuse."):
        return [
            f"the spool {spool.folder} is on {kind}: the journal's write-ahead log does not work over a network file system. "
            "Put the spool on a local disk (spool= or $WHERRY_SPOOL)"
        ]
    if kind in _VOLATILE:
        return [
            f"the spool {spool.folder} is on {kind}, in memory: staged files take RAM and are lost at a reboot. "
            "Put the spool on a disk (spool= or $WHERRY_SPOOL) unless that is what you want"
        ]
    return []
