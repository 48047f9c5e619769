"""How the ranks of a start come to one attempt, and what is refused: numbers and start ids that were used before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.protocol.attempts import Attempt, attempt_numbers, claim, claim_number
from wherry.checkpoints.protocol.names import RunKeys
from wherry.checkpoints.start import begin, recorded
from wherry.checkpoints.world import World
from wherry.config import RetryConfig
from wherry.errors import AlreadyExistsError, ConfigError, TransientError
from wherry.store import ObjectStore
from wherry.store.wrappers import RetryStore
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
ONCE_MORE = RetryConfig(first_wait_s=0.0, longest_wait_s=0.0)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return MemoryStore(StoreURI("memory", str(tmp_path)), {})


def start(store: ObjectStore, rank: int, number: int | None = None, *, size: int = 2, launcher: str | None = None) -> Attempt:
    return begin(store, KEYS, World(rank, size, rank, 0, launcher), number, lambda: None, patience_s=0.0)


def test_a_number_is_given_once_to_each_rank(store: ObjectStore) -> None:
    assert {start(store, rank, 5).key for rank in (0, 1)} == {"000000005"}
    for rank in (0, 1):
        with pytest.raises(AlreadyExistsError, match="each start"):
            start(store, rank, 5)
    assert {start(store, rank, 6).key for rank in (1, 0)} == {"000000006"}


def test_a_lower_number_is_refused_on_every_rank(store: ObjectStore) -> None:
    claim(store, KEYS, None)
    start(store, 0, 7)
    for rank in (0, 1):
        with pytest.raises(AlreadyExistsError, match="attempt 7, and a later start needs a higher number"):
            start(store, rank, 3)


def test_given_and_chosen_numbers_are_counted_together(store: ObjectStore) -> None:
    start(store, 0, 7)
    chosen = claim(store, KEYS, None)
    assert chosen.key.startswith("000000008_")
    for rank in (0, 1):
        with pytest.raises(AlreadyExistsError, match="has this attempt already"):
            start(store, rank, 8)
    assert list(attempt_numbers(store, KEYS)) == [7, 8]


def test_a_start_id_that_was_used_is_refused_on_every_rank(store: ObjectStore) -> None:
    first = [start(store, rank, launcher="torchelastic my-job 0") for rank in (0, 1)]
    assert first[0] == first[1]
    with pytest.raises(AlreadyExistsError, match="--rdzv-id"):
        start(store, 0, launcher="torchelastic my-job 0")
    with pytest.raises(AlreadyExistsError, match="rank 1"):
        start(store, 1, launcher="torchelastic my-job 0")
    assert list(attempt_numbers(store, KEYS)) == [1]
    assert start(store, 0, launcher="torchelastic my-job 1").key.startswith("000000002_")


def test_ranks_wait_for_rank_0_and_say_so(store: ObjectStore) -> None:
    with pytest.raises(ConfigError, match="is it running"):
        start(store, 1, launcher="slurm 4711 0 0")
    with pytest.raises(ConfigError, match="attempt=3"):
        recorded(store, KEYS, 3, patience_s=0.0)
    claim_number(store, KEYS, 3, None)
    assert recorded(store, KEYS, 3, patience_s=0.0).key == "000000003"


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_lost_answer_takes_no_attempt_away(store: ObjectStore, nth: int) -> None:
    lost = [Fault("put", TransientError("lost"), nth=nth, after=True)]
    lossy = RetryStore(FaultyStore(store, lost), ONCE_MORE)
    attempts = [begin(lossy, KEYS, World(rank, 2, rank, 0, "slurm 1 0 0"), None, lambda: None, patience_s=0.0) for rank in (0, 1)]
    assert attempts[0] == attempts[1]
    assert list(attempt_numbers(store, KEYS)) == [1]


def test_damaged_records_cost_a_number_each(tmp_path: Path) -> None:
    (tmp_path / KEYS.attempts).mkdir(parents=True)
    for number, text in ((1, "{"), (2, json.dumps({"format": "wherry-checkpoint-attempt", "version": 99}))):
        (tmp_path / KEYS.attempt(number)).write_text(text)
    store = LocalStore(StoreURI("file", "", str(tmp_path)[1:]), {})
    keys = RunKeys(f"{str(tmp_path)[1:]}/{KEYS.base}")
    assert claim(store, keys, None).key.startswith("000000003_")


def test_slurm_counts_ranks_in_a_step_only() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}
    assert World.of_this_process(batch).size == 1
    step = {**batch, "SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "1"}
    found = World.of_this_process(step)
    assert (found.rank, found.size, found.node_order, found.start) == (3, 4, 1, "slurm 7 0 0")


#: What two ranks do where only torch was installed. They are forked, so that torch is imported once.
WITHOUT_NUMPY = """
import os, sys
sys.modules["numpy"] = None
import torch.distributed as dist
from wherry.checkpoints.world import World

child = os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
try:
    World.of_this_process().agree("attempt")
except Exception as error:
    print(f"{type(error).__name__} {error}\\n", end="", flush=True)
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.large
def test_every_rank_is_told_to_install_numpy(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_NUMPY, str(tmp_path / "meeting")]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=170).stdout
    assert 2 == output.count("MissingExtraError the ranks cannot agree") == output.count("pip install 'wherry[torch]'"), output
