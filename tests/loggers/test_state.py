"""What a State knows of its run, and how a Timestamp steps."""

from __future__ import annotations

import random
from dataclasses import FrozenInstanceError

import pytest

from wherry.errors import ConfigError
from wherry.loggers import State, Timestamp
from wherry.loggers.run.state import generate_run_name

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
NAMES = ("TORCHELASTIC_RUN_ID", "COMPOSER_RUN_NAME", "RUN_NAME")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in RANKS + NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_batch_counts_in_the_run_and_in_the_epoch() -> None:
    start = Timestamp(epoch=2, batch=10, sample=100, token=1000, batch_in_epoch=1, sample_in_epoch=10, token_in_epoch=100)
    expected = Timestamp(epoch=2, batch=11, sample=108, token=1512, batch_in_epoch=2, sample_in_epoch=18, token_in_epoch=612)
    assert expected == start.to_next_batch(samples=8, tokens=512)


def test_an_epoch_ends_its_own_counts() -> None:
    start = Timestamp(epoch=2, batch=10, sample=100, token=1000, batch_in_epoch=1, sample_in_epoch=10, token_in_epoch=100)
    assert Timestamp(epoch=3, batch=10, sample=100, token=1000) == start.to_next_epoch()


def test_a_timestamp_never_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        Timestamp().epoch = 1  # type: ignore[misc]


def test_one_process_is_rank_0_of_1_with_a_name_of_its_own() -> None:
    state = State()
    assert (state.rank, state.local_rank, state.world_size, state.local_world_size, state.node_rank) == (0, 0, 1, 1, 0)
    assert state.run_name


def test_the_ranks_are_those_of_torchrun(environment: pytest.MonkeyPatch) -> None:
    torchrun = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
    for name, value in {**torchrun, "NODE_RANK": "7", "TORCHELASTIC_RUN_ID": "job-1"}.items():
        environment.setenv(name, value)
    state = State()
    assert (state.rank, state.local_rank, state.world_size, state.local_world_size, state.node_rank) == (5, 1, 8, 4, 1)
    assert state.run_name == "job-1"


def test_node_rank_stands_in_for_group_rank(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("NODE_RANK", "7")
    assert State().node_rank == 7


def test_what_is_given_wins_over_the_environment(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("RANK", "rubbish")
    environment.setenv("RUN_NAME", "other")
    state = State(run_name="mine", rank=1, world_size=2)
    assert (state.run_name, state.rank) == ("mine", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "one"), ("RANK", "-1"), ("RANK", ""), ("LOCAL_RANK", "1.5"), ("WORLD_SIZE", "0"), ("LOCAL_WORLD_SIZE", "0"),
     ("GROUP_RANK", "a"), ("NODE_RANK", "-2")],
)  # fmt: skip
def test_a_bad_value_names_its_variable(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    environment.setenv(name, value)
    with pytest.raises(ConfigError, match=f"environment variable {name} is '{value}'"):
        State()


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (1, 1)])
def test_a_rank_outside_the_world_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        State("run", rank=rank, world_size=world_size)


def test_the_run_name_comes_from_the_first_variable_that_is_set(environment: pytest.MonkeyPatch) -> None:
    for variable in NAMES:
        environment.setenv(variable, variable.lower())
        assert State().run_name == variable.lower()


def test_torchruns_word_for_no_run_id_is_no_name(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TORCHELASTIC_RUN_ID", "none")
    assert State().run_name not in ("", "none")


def test_many_ranks_make_up_no_names(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TORCHELASTIC_RUN_ID", "none")
    environment.setenv("WORLD_SIZE", "2")
    state = State()
    assert state.fill("rank{rank}-{{run_name}}") == "rank0-{run_name}"
    with pytest.raises(ConfigError, match=r"environment variable RUN_NAME, or give State"):
        state.fill("{run_name}/rank{rank}")


def test_made_up_names_sort_by_time() -> None:
    names = [generate_run_name(now_s, random.Random(1)) for now_s in (0.0, 1.0, 86_400.0, 2_000_000_000.0)]
    assert names == sorted(names)
    assert names[0].startswith("19700101-000000-")


def test_all_fields_fill_a_template() -> None:
    state = State("run", Timestamp(1, 2, 3, 4, 5, 6, 7), 8, 9, 10, 11, 12)
    template = "{run_name} {epoch} {batch} {sample} {token} {batch_in_epoch} {sample_in_epoch} {token_in_epoch}"
    assert state.fill(template) == "run 1 2 3 4 5 6 7"
    assert (
        state.fill("{rank} {local_rank} {world_size} {local_world_size} {node_rank} {epoch:04d} {{}}") == "8 9 10 11 12 0001 {}"
    )


def test_an_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown field \{step\}: known are .*batch_in_epoch.*world_size"):
        State().fill("{step}")


MADE_UP = "a27ef8c3-874d-4599-b81b-7c0956ae0cc7"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_id_that_torchrun_made_up_is_warned_of_once_on_rank_0(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    name = MADE_UP.replace("a27", f"a{rank}7")
    for variable, value in {"TORCHELASTIC_RUN_ID": name, "WORLD_SIZE": "2", "RANK": str(rank)}.items():
        environment.setenv(variable, value)
    assert [name, name] == [State().run_name, State().run_name]
    assert (1 - rank) == len(caplog.messages)
    assert all(name in text and "RUN_NAME=my-run torchrun" in text for text in caplog.messages)


@pytest.mark.parametrize(("variable", "name"), [("RUN_NAME", MADE_UP), ("TORCHELASTIC_RUN_ID", "my-run")])
def test_a_name_that_somebody_gave_is_not_warned_of(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, name: str
) -> None:
    environment.setenv(variable, name)
    assert name == State().run_name
    assert [] == caplog.messages
