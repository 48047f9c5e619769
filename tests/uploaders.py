"""What the tests of Uploader share."""

from __future__ import annotations

from pathlib import Path

from support import file_of
from wherry.spool.journal.jobs import JobId
from wherry.spool.staging import finish_writer, open_writer
from wherry.uploader import Uploader


def queue(uploader: Uploader, name: str, data: bytes) -> JobId:
    """Accept an upload and let nobody send it."""
    object_id, file = open_writer(uploader.spool, uploader._session.name)
    with file:
        file.write(data)
        file.flush()
        staged = finish_writer(uploader.spool, object_id, file)
    return uploader._acceptance.submit([staged], [name], True, ())[0]


def block(dest: Path, name: str = "blocked") -> str:
    """Have all uploads below a name fail for good: a file has the folder's place."""
    file_of(dest / name, 1)
    return f"{name}/file"


def staged(uploader: Uploader) -> list[Path]:
    return list(uploader.spool.objects.iterdir())
