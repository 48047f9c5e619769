"""Whether a process has a file open for writing, as Linux tells it. Such a file is not finished, though it may not change.

Linux grants a read lease on a file that no process has open for writing (fcntl(2), "Leases"). It is asked for and given back at
once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from pathlib import Path


def is_being_written(path: Path) -> bool:
    """Whether some process, this one included, has the file open for writing. False where that cannot be told.

    It cannot be told of another user's file, on network file systems, and on systems other than Linux.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it is gone, or not ours to read: that is found out, and said, where it is read
        return False
    try:
        # Who opens it for writing in this very instant waits for the lease to end, and we get a signal. SIGIO, which that
        # would be, ends a process; SIGURG is ignored.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        with contextlib.suppress(OSError):  # it was broken already
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    else:
        return False
    finally:
        os.close(file)
