"""The tests of composer_trials, which Composer's own interpreter runs: what each finds of the other, bad input, its defects.

A file of its own, beside that of the killed trainings: the extra tests run a file a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_trials.environment import python_with_composer
from composer_trials.running import environment, run_cases
from servers.real import S3Server, seaweedfs

pytestmark = [pytest.mark.extra, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with_composer()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as one:
        yield one


def test_what_composer_wrote_is_found_and_what_we_wrote_is_found_by_composer(
    python: Path, server: S3Server, tmp_path: Path
) -> None:
    run_cases("exchange.py", python, tmp_path, environment(tmp_path, server) | {"WHERRY_TEST_BUCKET": server.bucket})


def test_bad_input_ends_no_training(python: Path, tmp_path: Path) -> None:
    run_cases("bad_input.py", python, tmp_path, environment(tmp_path))


def test_two_trainers_at_once_with_one_run_name_are_told_and_end(python: Path, server: S3Server, tmp_path: Path) -> None:
    run_cases("two_trainers.py", python, tmp_path, environment(tmp_path, server) | {"WHERRY_TEST_BUCKET": server.bucket})


# Composer's own class does not change: what it does is seen by make test-slow, which runs both sides.
@pytest.mark.parametrize("side", ["ours", pytest.param("both", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["defects.py", "defects_of_ends.py"])
def test_the_defects_of_composers_uploader_are_none_of_ours(
    name: str, side: str, python: Path, server: S3Server, tmp_path: Path
) -> None:
    env = environment(tmp_path, server) | {"WHERRY_TEST_BUCKET": server.bucket}
    run_cases(name, python, tmp_path, env, *(["-k", "not theirs"] if side == "ours" else []))
