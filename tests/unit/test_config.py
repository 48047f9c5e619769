from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from wherry.config import AgentConfig, Config, RetryConfig, SpoolConfig, TransferConfig, default_spool_folder
from wherry.errors import ConfigError


@pytest.mark.parametrize("kind", [Config, RetryConfig, TransferConfig, SpoolConfig, AgentConfig])
def test_defaults_are_valid_and_frozen(kind: type[Config]) -> None:
    config = kind()
    with pytest.raises(FrozenInstanceError):
        config.on_failure = "raise"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (RetryConfig, "job_deadline_s", -1),
        (RetryConfig, "first_wait_s", float("nan")),
        (RetryConfig, "longest_wait_s", "20"),
        (TransferConfig, "parts_in_flight", 0),
        (TransferConfig, "part_size_bytes", True),
        (SpoolConfig, "durability", "fsync"),
        (SpoolConfig, "max_spool_bytes", -1),
        (SpoolConfig, "when_full", ""),
        (AgentConfig, "run_in", "thread"),
        (AgentConfig, "n_workers", 0),
        (AgentConfig, "linger_s", -0.1),
        (Config, "on_failure", "ignore"),
        (Config, "drain_at_exit_s", -1),
        (Config, "give_up_s", "60"),
    ],
)
def test_bad_value_is_refused_by_name(kind: type[Config], field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__}.{field}"):
        kind(**{field: value})  # type: ignore[arg-type]


def test_zero_and_none_are_allowed_where_they_mean_something() -> None:
    assert RetryConfig(call_deadline_s=0).call_deadline_s == 0
    assert SpoolConfig(max_spool_bytes=None).max_spool_bytes is None
    assert Config(drain_at_exit_s=0).drain_at_exit_s == 0


def test_a_part_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Config\.retry .*RetryConfig"):
        Config(retry=SpoolConfig())  # type: ignore[arg-type]


def test_spool_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "spool"))
    assert tmp_path / "spool" == default_spool_folder()


def test_spool_folder_is_the_users_own_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHERRY_SPOOL", raising=False)
    assert default_spool_folder().name == f"wherry-{os.getuid()}"
