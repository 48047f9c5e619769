"""Each kind of error has the exit code that the documentation gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.cli.arguments import destinations, error_text, parse_target, split_target
from wherry.cli.exit_codes import Exit, exit_for
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ConfigError,
    IntegrityError,
    JobFailure,
    JournalError,
    MissingExtraError,
    NameTakenError,
    NotFoundError,
    SourceChangedError,
    SpoolError,
    ThrottledError,
    UploadFailed,
)


def failed(kind: str | None) -> JobFailure:
    return JobFailure(1, "s3://bucket/x", 1, "words", kind)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ThrottledError("slow down"), Exit.FAILED),
        (UploadFailed([]), Exit.FAILED),
        (UploadFailed([failed("AlreadyExistsError"), failed("AlreadyExistsError")]), Exit.ALREADY_EXISTS),
        (NameTakenError([failed("AlreadyExistsError")]), Exit.ALREADY_EXISTS),
        (UploadFailed([failed("BucketNotFoundError")]), Exit.NOT_FOUND),
        (UploadFailed([failed("AccessDeniedError")]), Exit.ACCESS_DENIED),
        (UploadFailed([failed("JournalError")]), Exit.SPOOL),
        (UploadFailed([failed("AccessDeniedError"), failed("AlreadyExistsError")]), Exit.FAILED),
        (UploadFailed([failed("TransientError")]), Exit.FAILED),
        (UploadFailed([failed(None)]), Exit.FAILED),
        (OSError(5, "Input/output error"), Exit.FAILED),
        (ConfigError("wrong"), Exit.USAGE),
        (MissingExtraError("install it"), Exit.USAGE),
        (NotFoundError("none"), Exit.NOT_FOUND),
        (BucketNotFoundError("none"), Exit.NOT_FOUND),
        (FileNotFoundError(2, "No such file"), Exit.NOT_FOUND),
        (AlreadyExistsError("there"), Exit.ALREADY_EXISTS),
        (FileExistsError(17, "File exists"), Exit.ALREADY_EXISTS),
        (AccessDeniedError("no"), Exit.ACCESS_DENIED),
        (PermissionError(13, "Permission denied"), Exit.ACCESS_DENIED),
        (TimeoutError("late"), Exit.TIMED_OUT),
        (IntegrityError("other bytes"), Exit.INTEGRITY),
        (SpoolError("full"), Exit.SPOOL),
        (SourceChangedError("it grew"), Exit.SPOOL),
        (JournalError("locked"), Exit.SPOOL),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, expected: Exit) -> None:
    assert expected is exit_for(error)


def test_system_errors_are_said_without_their_number() -> None:
    assert "a.txt: No such file or directory" == error_text(FileNotFoundError(2, "No such file or directory", "a.txt"))
    assert "No space left on device" == error_text(OSError(28, "No space left on device"))


@pytest.mark.parametrize(
    ("text", "store", "prefix", "name"),
    [
        ("s3://bucket/a", "s3://bucket", "", "a"),
        ("s3://bucket/run/deep/a", "s3://bucket", "run/deep", "a"),
        ("s3://bucket/what?is#this", "s3://bucket", "", "what?is#this"),
        ("/srv/backup/a", "file://", "srv/backup", "a"),
    ],
)
def test_uri_is_split_into_folder_and_name(text: str, store: str, prefix: str, name: str) -> None:
    folder, found = split_target(text)
    assert (store, prefix, name) == (folder.store, folder.prefix, found)
    assert parse_target(text).prefix == folder.key_for(found)


def test_a_bucket_alone_takes_names_below_it() -> None:
    folder, names = destinations([Path("a"), Path("b/")], "s3://bucket")
    assert ("s3://bucket/", ["a", "b"]) == (str(folder), names)
