"""What a job waits for without having failed."""

from __future__ import annotations

from wherry.errors import TransientError


class NotReadyError(TransientError):
    """Something that the job needs is not there yet. Waiting for it is no failed attempt. `look_again_s`: when to look for it.

    `kind`: what the journal notes as the kind of error.
    """

    look_again_s = 2.0
    kind = "NotReadyError"
