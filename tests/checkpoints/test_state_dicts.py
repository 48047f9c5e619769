"""State dicts of torch in a set, and checkpoints that are sent to another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import wherry
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.errors import ConfigError


def copy_of(checkpoints: Checkpoints) -> Checkpoints:
    copy: Checkpoints = pickle.loads(pickle.dumps(checkpoints))  # noqa: S301  our own
    return copy


def test_a_pickle_opens_the_same_run_with_the_same_attempt(tmp_path: Path, spool_folder: Path) -> None:
    with wherry.Checkpoints(tmp_path, "run1", spool=spool_folder) as checkpoints:
        attempt = checkpoints.attempt
        again = copy_of(checkpoints)
        assert (attempt, repr(checkpoints)) == (again.attempt, repr(again))
        assert again is copy_of(checkpoints)
        again.close()


def test_a_secret_is_not_pickled(spool_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        "aws_access_key_id": "AKIA",
        "aws_secret_access_key": "topsecret",
        "endpoint_url": "http://127.0.0.1:9",
        "region": "us-east-1",
    }
    with wherry.Checkpoints("s3://bucket", "run1", spool=spool_folder, storage_options=keys) as checkpoints:
        with pytest.raises(ConfigError, match="may be a secret") as told:
            pickle.dumps(checkpoints)
        assert "topsecret" not in str(told.value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
        assert b"topsecret" not in pickle.dumps(checkpoints)


def test_what_only_this_process_sees_is_not_pickled() -> None:
    with wherry.Checkpoints("memory://bucket", "run1") as checkpoints, pytest.raises(ConfigError, match="this process only"):
        pickle.dumps(checkpoints)
