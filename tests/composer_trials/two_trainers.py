"""Run by tests/extra/test_composer_cases.py: two of Composer's Trainers that live at once under one run name and save in turn."""

from __future__ import annotations

import logging
import multiprocessing
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import pytest
from composer import Callback

from composer_trials.parts import trainer
from support import end_agent
from wherry import Uploader
from wherry.errors import WherryError
from wherry.integrations.composer import RemoteUploaderDownloader, wherry_composer
from wherry.loggers import ObjectStoreLogger

BUCKET = os.environ["WHERRY_TEST_BUCKET"]
TOLD = "another process uploads as run 'my-run', rank 0, as well"


class Turns(Callback):  # type: ignore[misc]  # Composer is not installed where types are checked
    """The first of two Trainers saves an epoch's checkpoint and sees it stored, then the second does."""

    def __init__(self, barrier: Any, uploader: Uploader, *, is_first: bool) -> None:
        self._barrier, self._uploader, self._is_first = barrier, uploader, is_first

    def epoch_end(self, state: Any, logger: Any) -> None:
        if not self._is_first:
            self._meet()

    def epoch_start(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.epoch):
            self._has_saved()

    def fit_end(self, state: Any, logger: Any) -> None:
        self._has_saved()

    def _has_saved(self) -> None:
        try:
            self._uploader.flush(60)
        except WherryError as error:  # the other has the name; raised here, it does not fail the fit as well
            logging.getLogger("wherry").warning("%s", error)
        if self._is_first:
            self._meet()
        self._meet()

    def _meet(self) -> None:
        with suppress(BrokenBarrierError):  # the other has ended
            self._barrier.wait(60)


def train(kind: str, prefix: str, spool: str, barrier: Any, log: str, *, is_first: bool) -> None:
    """Train for two epochs in the folder of `log`, which takes the warnings."""
    os.chdir(Path(log).parent)
    logging.basicConfig(filename=log, level=logging.WARNING, force=True)  # a forked process has those of pytest
    if kind == "drop-in":
        ours: Any = RemoteUploaderDownloader(f"s3://{BUCKET}", {"prefix": prefix}, upload_staging_folder=spool)
    else:
        ours = wherry_composer(ObjectStoreLogger(f"s3://{BUCKET}/{prefix}", spool=spool))
    turns = Turns(barrier, ours.destinations[0].uploader, is_first=is_first)
    options = {"save_folder": "{run_name}/ck", "save_interval": "1ep", "autoresume": True, "callbacks": [turns]}
    one = trainer(ours, **options)
    barrier.wait(150)  # neither finds the other's checkpoints
    try:
        one.fit()
        one.close()
    except WherryError as error:
        logging.getLogger("wherry").warning("%s", error)
        barrier.abort()
        raise


@dataclass(frozen=True)
class End:
    """How a Trainer ended, and what its log says."""

    code: int
    log: str


def both(kind: str, prefix: str, folder: Path, spools: tuple[str, str]) -> list[End]:
    """Two Trainers at once."""
    context = multiprocessing.get_context("fork")  # as Composer takes nine seconds to import
    barrier = context.Barrier(2)
    programs, logs = [], []
    with ExitStack() as agents:
        for spool in set(spools):
            agents.enter_context(end_agent(folder / spool))
        for number, spool in enumerate(spools):
            (folder / str(number)).mkdir()
            logs.append(folder / str(number) / "log")
            args = (kind, prefix, str(folder / spool), barrier, str(logs[-1]))
            programs.append(context.Process(target=train, args=args, kwargs={"is_first": number == 0}))
            programs[-1].start()
        for one in programs:
            one.join(200)
    return [End(-1 if one.exitcode is None else one.exitcode, log.read_text()) for one, log in zip(programs, logs, strict=True)]


def is_stored(prefix: str, of: Path, down: Path) -> bool:
    """Whether the store has the checkpoints of the Trainer in the folder `of`, and a pointer to the last."""
    local = [of / "my-run/ck" / name for name in ("ep1-ba4-rank0.pt", "ep2-ba8-rank0.pt")]
    with Uploader(f"s3://{BUCKET}/{prefix}", spool=down / "spool") as store:
        for name in ("ep1-ba4-rank0.pt", "ep2-ba8-rank0.pt", "latest-rank0.pt"):
            store.get(f"my-run/ck/{name}", down / name)
    found = [down / path.name for path in local]
    is_pointed_at = (down / "latest-rank0.pt").read_bytes() == found[-1].read_bytes()
    return is_pointed_at and [one.read_bytes() for one in local] == [one.read_bytes() for one in found]


@pytest.mark.parametrize("kind", ["wherry_composer", "drop-in"])
def test_on_two_machines_the_later_checkpoints_stay_and_both_are_told(kind: str, tmp_path: Path) -> None:
    prefix = f"two-machines-{kind}"
    first, second = both(kind, prefix, tmp_path, ("a", "b"))
    assert [0, 0] == [first.code, second.code], first.log + second.log
    assert [1, 1] == [first.log.count(TOLD), second.log.count(TOLD)], first.log + second.log
    assert is_stored(prefix, tmp_path / "1", tmp_path)


@pytest.mark.parametrize("kind", ["wherry_composer", "drop-in"])
def test_on_one_machine_the_first_checkpoints_stay_and_both_are_told(kind: str, tmp_path: Path) -> None:
    prefix = f"one-machine-{kind}"
    first, second = both(kind, prefix, tmp_path, ("a", "a"))
    assert 0 == first.code, first.log
    assert 1 == second.log.count(TOLD), second.log
    assert "ep1-ba4-rank0.pt" in second.log
    if kind == "wherry_composer":  # else the second has ended at once, as Composer's own does
        assert [0, 1] == [second.code, first.log.count(TOLD)], first.log + second.log
    assert is_stored(prefix, tmp_path / "0", tmp_path)
