"""What a user may give wrongly: each argument is refused before anything is done, with the rule and the remedy."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wherry
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.errors import ConfigError


@pytest.fixture
def run(bucket: Path, spool_folder: Path) -> Iterator[Checkpoints]:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        yield checkpoints


def saved(run: Checkpoints, tmp_path: Path, step: Any, **options: Any) -> None:
    (tmp_path / "model.bin").write_bytes(b"model")
    assert run.save(step, tmp_path / "model.bin", **options).wait(60)


class Index:
    """As the integers of numpy, and tensors of one."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("source", [5, ["a"], {1}, b"model.bin", ""])
def test_a_source_that_is_none_is_refused(run: Checkpoints, source: Any) -> None:
    with pytest.raises(ConfigError, match="give a file, a folder or a state dict"):
        run.save(1, source)
    assert run.catalog.names() == []


@pytest.mark.parametrize("folder", [None, 5, b"back", "", "a\0b", "/"])
def test_a_folder_that_is_none_is_refused(run: Checkpoints, tmp_path: Path, folder: Any) -> None:
    saved(run, tmp_path, 1)
    with pytest.raises(ConfigError, match="give the path of a folder"):
        run.restore(1, folder)


@pytest.mark.parametrize("ranks", [5, [], [True], ["0"], [1]])
def test_ranks_that_are_none_of_the_sets_are_refused(run: Checkpoints, tmp_path: Path, ranks: Any) -> None:
    saved(run, tmp_path, 1)
    with pytest.raises(ConfigError, match="give 'own', or ranks from 0 to 0"):
        run.restore(1, tmp_path / "back", ranks=ranks)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": 3}, "keep=3: give a wherry.Keep, such as .*, not an int"),
        ({"keep": {"last": 3}}, "give a wherry.Keep"),
        ({"world": 3}, "give a World"),
        ({"config": 3}, "give a wherry.Config"),
        ({"storage_options": "x"}, "give a dict"),
        ({"spool": 5}, "spool=5: give the path of a folder"),
        ({"spool": ""}, "give the path of a folder"),
        ({"attempt": 1.5}, "give a whole number"),
    ],
)
def test_settings_of_a_wrong_type_are_refused_at_once(
    bucket: Path, spool_folder: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        wherry.Checkpoints(bucket, "run1", **{"spool": spool_folder, **options})


@pytest.mark.parametrize("uri", [None, 5, b"/bucket"])
def test_a_uri_that_is_no_text_is_refused(spool_folder: Path, uri: Any) -> None:
    with pytest.raises(ConfigError, match="is no URI"):
        wherry.Checkpoints(uri, "run1", spool=spool_folder)


@pytest.mark.parametrize("metric", ["", 5])
def test_a_metric_without_a_name_is_no_rule(metric: Any) -> None:
    with pytest.raises(ConfigError, match="give the name of a metric"):
        wherry.Keep(best=1, metric=metric)


@pytest.mark.parametrize("options", [{"metrics": [1]}, {"metadata": [1]}, {"metrics": {"": 1.0}}])
def test_metrics_and_metadata_are_dicts(run: Checkpoints, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"give a dict|empty name"):
        saved(run, tmp_path, 1, **options)


def test_prune_takes_rules_and_delays_only(run: Checkpoints) -> None:
    with pytest.raises(ConfigError, match=r"keep=3: give a wherry.Keep"):
        run.prune(keep=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"delays=3: give a wherry.PruneDelays"):
        run.prune(delays=3)  # type: ignore[arg-type]


def test_a_step_may_be_an_integer_of_another_library(run: Checkpoints, tmp_path: Path) -> None:
    saved(run, tmp_path, Index())
    assert run.find(Index()).step == 7  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give a whole number"):
        saved(run, tmp_path, "8")


def test_threads_that_save_first_have_one_attempt(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    """And a step that several of them save is saved once."""
    (tmp_path / "model.bin").write_bytes(b"model")
    meet = threading.Barrier(8, timeout=60)
    refused: list[int] = []

    def save(step: int) -> None:
        meet.wait()
        try:
            run.save(step, tmp_path / "model.bin")
        except wherry.AlreadyExistsError:
            refused.append(step)

    threads = [threading.Thread(target=save, args=(step,)) for step in (1, 2, 3, 4, 5, 5, 5, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.flush(60)
    assert [5, 5, 5] == refused
    assert [1, 2, 3, 4, 5] == [one.step for one in run.list()]
    assert ["000000001.json"] == os.listdir(bucket / "run1/checkpoints/attempts")
