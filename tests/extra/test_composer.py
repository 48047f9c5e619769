"""The real Trainer of Composer with our destinations: killed and resumed, our uploader in the place of its own, bad input.

It runs in an environment of its own, as mosaicml 0.32.1 pins torch below 2.7.1, of which there is no build here: it is installed
with --no-deps beside torch 2.13.0 and torchvision 0.28.0, of which two fake kernels are taken out (see composer_trials).
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import wherry
from composer_trials.environment import python_with_composer
from composer_trials.running import environment
from docs_programs import files_below, names, program
from servers.real import S3Server, seaweedfs
from servers.warm import Running, Warm
from support import end_agent, wait_until

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with_composer()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as one:
        yield one


@pytest.fixture(scope="module")
def trainings(python: Path) -> Warm:
    return Warm("composer_trials.warm_training:training", python, environment(Path()))


class Ranks:
    """All ranks of train.py, as a launcher starts them."""

    def __init__(self, trainings: Warm, arguments: Sequence[str], n_ranks: int, folder: Path, env: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        shared = {"WORLD_SIZE": str(n_ranks), "LOCAL_WORLD_SIZE": str(n_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self._ranks: list[Running] = []
        for rank in range(n_ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
            with (
                open(os.devnull) as nothing,
                (folder / f"rank{rank}.log").open("a") as log,
                (folder / f"rank{rank}.out").open("w") as out,
            ):
                streams = (nothing.fileno(), out.fileno(), log.fileno())
                self._ranks.append(trainings.start(arguments, folder, {**env, **shared, **own}, streams))
        self._output = folder / "rank0.out"

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._ranks:
            one.kill()
            one.close()

    def lines_until(self, last: str) -> list[str]:
        """What rank 0 prints, up to a line that begins with `last`."""

        def is_said() -> bool:
            return any(line.startswith(last) for line in self._output.read_text().splitlines())

        wait_until(is_said, 200.0, repr(last))
        said = self._output.read_text().splitlines()
        return said[: 1 + next(at for at, line in enumerate(said) if line.startswith(last))]

    def kill(self) -> None:
        """SIGKILL to all of them."""
        for one in self._ranks:
            one.kill()

    def ends(self) -> list[int]:
        """Wait for the ends of all ranks."""
        return [one.wait(200.0) for one in self._ranks]


def trained(trainings: Warm, uri: str, n_ranks: int, folder: Path, env: dict[str, str]) -> tuple[str, str]:
    """Train to the end: where it began, and what it ended with."""
    result = folder / "result.txt"
    with Ranks(trainings, [uri, "-1", str(result)], n_ranks, folder, env) as ranks:
        began = ranks.lines_until("began at")[-1]
        assert [0] * n_ranks == ranks.ends(), (folder / "rank0.log").read_text()
    return began, result.read_text()


@pytest.fixture(scope="module", params=[1, 2])
def without_a_kill(request: pytest.FixtureRequest, trainings: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """How many ranks, and what they end with when nothing is killed."""
    folder = tmp_path_factory.mktemp("unharmed")
    with end_agent(folder / "spool"):
        began, result = trained(trainings, str(folder / "bucket"), request.param, folder, environment(folder))
    assert "began at 0" == began
    return request.param, result


@pytest.mark.parametrize("store", ["folder", pytest.param("seaweedfs", marks=pytest.mark.ci)])
def test_a_killed_run_goes_on_from_the_store_and_ends_with_the_same_bits(
    store: str, without_a_kill: tuple[int, str], trainings: Warm, server: S3Server, tmp_path: Path
) -> None:
    n_ranks, expected = without_a_kill
    env = environment(tmp_path, server if store == "seaweedfs" else None)
    uri = f"s3://{server.bucket}/{n_ranks}" if store == "seaweedfs" else str(tmp_path / "bucket")
    n_batches = 64 // 8 // n_ranks
    stop_at = 2 * n_batches + n_batches // 2
    with end_agent(tmp_path / "spool"):
        arguments = [uri, str(stop_at), str(tmp_path / "result.txt")]
        with Ranks(trainings, arguments, n_ranks, tmp_path, env) as ranks:
            ranks.lines_until("stopped at")
            ranks.kill()
            assert [-9] * n_ranks == ranks.ends()
        shutil.rmtree(tmp_path / "my-run")  # another machine has no local checkpoints
        began, result = trained(trainings, uri, n_ranks, tmp_path, env)
    assert f"began at {2 * n_batches}" == began
    assert expected == result


def killed(trainings: Warm, uri: str, stop_at: str, n_ranks: int, folder: Path, env: dict[str, str]) -> str:
    """Train up to a moment, kill all ranks then, and take the local checkpoints away: where it began."""
    with Ranks(trainings, [uri, stop_at, str(folder / "result.txt")], n_ranks, folder, env) as ranks:
        said = ranks.lines_until("stopped at")
        ranks.kill()
        assert [-9] * n_ranks == ranks.ends()
    shutil.rmtree(folder / "my-run")
    return next(line for line in said if line.startswith("began at"))


@pytest.mark.parametrize("kind", ["wherry_composer", "drop-in"])
def test_a_run_killed_between_a_checkpoint_and_its_pointer_goes_on(
    kind: str, without_a_kill: tuple[int, str], trainings: Warm, server: S3Server, tmp_path: Path
) -> None:
    """Each time on another machine, with the default save_overwrite=False."""
    n_ranks, expected = without_a_kill
    uri = f"s3://{server.bucket}/between-{kind}-{n_ranks}"
    env = environment(tmp_path, server) | ({"WHERRY_TEST_DROP_IN": "1"} if kind == "drop-in" else {})
    with ExitStack() as agents:
        spools = [tmp_path / f"spool{number}" for number in range(3)]
        for spool in spools:
            agents.enter_context(end_agent(spool))
        one, two, three = ({**env, "WHERRY_SPOOL": str(spool)} for spool in spools)
        assert "began at 0" == killed(trainings, uri, "pointer-1", n_ranks, tmp_path, one)
        assert "began at 0" == killed(trainings, uri, "pointer-2", n_ranks, tmp_path, two)
        began, result = trained(trainings, uri, n_ranks, tmp_path, three)
    assert f"began at {64 // 8 // n_ranks}" == began
    assert expected == result


@pytest.mark.parametrize("n_kills", [6, pytest.param(24, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_goes_on(
    n_kills: int, without_a_kill: tuple[int, str], trainings: Warm, server: S3Server, tmp_path: Path
) -> None:
    n_ranks, expected = without_a_kill
    rng = random.Random(n_kills * n_ranks)
    uri = f"s3://{server.bucket}/random-{n_kills}-{n_ranks}"
    spools = [tmp_path / f"spool{number}" for number in range(n_kills)]
    arguments = [uri, "-1", str(tmp_path / "result.txt")]
    with ExitStack() as agents:
        for spool in spools:
            agents.enter_context(end_agent(spool))
        for _ in spools:
            env = environment(tmp_path, server) | {"WHERRY_SPOOL": str(rng.choice(spools))}
            env |= {"WHERRY_TEST_DROP_IN": "1"} if rng.random() < 0.5 else {}
            with Ranks(trainings, arguments, n_ranks, tmp_path, env) as ranks:
                ranks.lines_until("began at")
                time.sleep(rng.uniform(0.0, 0.8))  # the moment is what varies; training takes about a second
                ranks.kill()
                assert set(ranks.ends()) <= {-9, 0}, (tmp_path / "rank0.log").read_text()[-8000:]
            shutil.rmtree(tmp_path / "my-run")
        _, result = trained(trainings, uri, n_ranks, tmp_path, env)
    assert expected == result


@pytest.mark.parametrize("name", ["before", "after"])
def test_the_programs_of_the_page_train_and_leave_the_same_files(
    name: str, python: Path, server: S3Server, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(program(name, page="from-composer").replace("my-bucket", server.bucket).replace("my-run", f"run-{name}"))
    env = environment(tmp_path, server)
    with end_agent(tmp_path / "spool"):
        ended = subprocess.run([str(python), str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
        assert 0 == ended.returncode, ended.stderr[-8000:]
        uri = f"s3://{server.bucket}/run-{name}"
        with wherry.Uploader(uri, storage_options=server.options, spool=tmp_path / "spool") as uploader:
            keys = {meta.key for meta in uploader.list()}
    expected = {f"checkpoints/ep{epoch}-ba{8 * epoch}-rank0.pt" for epoch in (1, 2)} | {"checkpoints/latest-rank0.pt.symlink"}
    assert expected <= keys
    assert files_below(tmp_path / f"run-{name}" / "checkpoints") == keys_of_checkpoints(expected)


def keys_of_checkpoints(keys: set[str]) -> set[str]:
    """The local names of the checkpoints with these remote names."""
    return {key.removeprefix("checkpoints/").removesuffix(".symlink") for key in keys}


def test_every_program_of_the_page_is_run() -> None:
    assert ["before", "after"] == names("from-composer")
