from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from wherry import errors
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConfigError,
    IntegrityError,
    JobFailure,
    NameTakenError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
    UploadFailed,
    WherryError,
    kind_of,
    upload_failed,
)


def all_errors() -> list[type[Exception]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


def test_every_error_is_a_wherry_error() -> None:
    assert [kind for kind in all_errors() if not issubclass(kind, WherryError)] == []


def test_the_drawing_names_every_error() -> None:
    drawn = set(re.findall(r"[A-Z]\w+(?:Error|Failed)", errors.__doc__ or ""))
    assert {kind.__name__ for kind in all_errors()} <= drawn


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (NotFoundError, FileNotFoundError),
        (AlreadyExistsError, FileExistsError),
        (AccessDeniedError, PermissionError),
        (ConfigError, ValueError),
    ],
)
def test_callers_may_catch_the_builtin(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_class_decides_retry() -> None:
    decided = [kind for kind in all_errors() if issubclass(kind, StoreError) and kind is not StoreError]
    assert [kind for kind in decided if issubclass(kind, TransientError) == issubclass(kind, PermanentError)] == []


def test_message_says_operation_uri_and_hint() -> None:
    error = IntegrityError("size differs", operation="put", uri="s3://b/k", hint="send it again")
    assert str(error) == "put s3://b/k: size differs (send it again)"
    assert str(PermanentError("plain")) == "plain"


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301  our own bytes
@pytest.mark.parametrize("kind", [TransientError, ThrottledError, NotFoundError, AlreadyExistsError, AccessDeniedError])
def test_store_errors_survive_copies(kind: type[StoreError], again: object) -> None:
    error = kind("words", operation="get", uri="gs://b/k", hint="next step")
    assert callable(again)
    copied = again(error)
    assert (type(error), str(error), error.uri) == (type(copied), str(copied), copied.uri)


def test_upload_failed_lists_each_job_and_the_remedy() -> None:
    failures = [JobFailure(1, "s3://b/one", 3, "denied"), JobFailure(2, "s3://b/two", 1, "gone")]
    error = UploadFailed(failures, remedy="wherry retry")
    assert tuple(failures) == error.failures
    for words in ("2 uploads", "s3://b/one (job 1, 3 attempts): denied", "s3://b/two", "wherry retry"):
        assert words in str(error)


def taken(name: str, kind: str | None = "AlreadyExistsError") -> JobFailure:
    return JobFailure(1, f"s3://b/{name}", 1, "the object is there already", kind)


def test_uploads_that_all_lost_their_names_are_caught_as_either() -> None:
    error = upload_failed([taken("one"), taken("two")], remedy="wherry retry")
    assert [] == [kind for kind in (UploadFailed, AlreadyExistsError, FileExistsError) if not isinstance(error, kind)]
    assert str(UploadFailed(error.failures, remedy="wherry retry")) == str(error)


@pytest.mark.parametrize("failures", [[], [taken("one"), taken("two", "AccessDeniedError")], [taken("old", None)]])
def test_uploads_that_failed_otherwise_are_no_taken_names(failures: list[JobFailure]) -> None:
    assert UploadFailed is type(upload_failed(failures))


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301  our own bytes
@pytest.mark.parametrize("kind", [UploadFailed, NameTakenError])
def test_upload_failed_survives_copies(kind: type[UploadFailed], again: object) -> None:
    error = kind([taken("one")], remedy="wherry retry")
    assert callable(again)
    copied = again(error)
    assert (kind, str(error), error.failures) == (type(copied), str(copied), copied.failures)


def test_the_kind_of_an_error_is_a_name_that_callers_know() -> None:
    class Detail(AlreadyExistsError):
        pass

    assert ["AlreadyExistsError", "PermissionError", "LookupError"] == [
        kind_of(error) for error in (Detail("taken"), PermissionError(13, "no"), LookupError("no"))
    ]
