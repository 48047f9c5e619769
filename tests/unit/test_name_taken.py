"""Who loses a name to another writer is told so by the class of the error, whoever has tried and whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import CALLER, end_agent, file_of
from wherry.config import Config
from wherry.errors import AlreadyExistsError, UploadFailed
from wherry.spool.handle import UploadHandle
from wherry.uploader import Uploader

ASK: dict[str, Callable[[Uploader, UploadHandle], object]] = {
    "result": lambda _, handle: handle.result(60),
    "flush": lambda uploader, _: uploader.flush(20),
    "close": lambda uploader, _: uploader.close(20),
}


@pytest.mark.parametrize("config", [CALLER, None], ids=["caller", "agent"])
@pytest.mark.parametrize("way", ASK)
def test_a_taken_name_is_an_already_exists_error(way: str, config: Config | None, tmp_path: Path) -> None:
    file, spool = file_of(tmp_path / "file", 5), tmp_path / "spool"
    file_of(tmp_path / "store" / "x", 3)
    with end_agent(spool):
        uploader = Uploader(tmp_path / "store", spool=spool, config=config)
        try:
            handle = uploader.put(file, "x", overwrite=False)
            with pytest.raises(AlreadyExistsError) as caught:
                ASK[way](uploader, handle)
        finally:
            uploader.close(20)
    assert isinstance(caught.value, UploadFailed)
    assert [(handle.uri, "AlreadyExistsError")] == [(one.uri, one.kind) for one in caught.value.failures]


def test_a_retried_upload_forgets_why_it_failed(tmp_path: Path) -> None:
    file = file_of(tmp_path / "file", 5)
    taken = file_of(tmp_path / "store" / "x", 3)
    with Uploader(tmp_path / "store", spool=tmp_path / "spool", config=CALLER) as uploader:
        handle = uploader.put(file, "x", overwrite=False)
        with pytest.raises(AlreadyExistsError):
            handle.result()
        taken.unlink()
        uploader.journal.uploads.retry(handle.ids)
        assert [None] == [job.error_kind for job in uploader.journal.queries.jobs(ids=handle.ids)]
        assert 5 == handle.result().size_bytes
