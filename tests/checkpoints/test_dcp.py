"""torch.distributed.checkpoint saves and loads sets, in one process."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wherry
from servers.real import S3Server
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.commit import SetFailedError
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.world import World
from wherry.errors import AlreadyExistsError, ConfigError, IntegrityError, NotFoundError, UploadFailed
from wherry.store.wrappers import WrappedStore
from wherry.torch import StorageReader, StorageWriter
from wherry.torch.dcp_metadata import read_dcp_metadata
from wherry.torch.verified_ranges import VerifiedRanges

pytestmark = [pytest.mark.large, pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")]


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def run(bucket: Path, spool_folder: Path) -> Iterator[Checkpoints]:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        yield checkpoints


def state_of(seed: int, **more: Any) -> dict[str, Any]:
    import torch

    torch.manual_seed(seed)
    model = {"weight": torch.rand(300, 40), "bias": torch.rand(3, dtype=torch.bfloat16), "empty": torch.zeros(0)}
    return {"model": model, "step": torch.tensor(seed), "lr": 0.1 * seed, "names": ["a", "b"], **more}


def empty(state: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {
        name: empty(value) if isinstance(value, dict) else torch.zeros_like(value) if isinstance(value, torch.Tensor) else None
        for name, value in state.items()
    }


def same(first: Any, second: Any) -> None:
    import torch

    if isinstance(first, dict):
        assert list(first) == list(second)
        for name in first:
            same(first[name], second[name])
    else:
        assert torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


def saved(run: Checkpoints, step: int, state: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    state = state_of(step) if state is None else state
    writer = StorageWriter(run, step, **how)
    save_distributed(state, storage_writer=writer)
    assert writer.handle.wait(60)
    return state


def loaded(run: Checkpoints, like: dict[str, Any], which: int | str = "latest") -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    found = empty(like)
    load_distributed(found, storage_reader=StorageReader(run, which))
    return found


@pytest.mark.parametrize("how", [{}, {"thread_count": 3}, {"single_file_per_rank": False}], ids=str)
def test_what_was_saved_is_loaded(run: Checkpoints, how: dict[str, Any]) -> None:
    state = saved(run, 1, **how)
    same(state, loaded(run, state))
    found = run.latest()
    assert found is not None and (found.kind, found.parent) == ("dcp", None)


def test_a_planner_that_keeps_its_plans_saves_set_after_set(run: Checkpoints) -> None:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    for step in (1, 2, 3):
        state = state_of(step)
        writer = StorageWriter(run, step)
        save_distributed(state, storage_writer=writer, planner=DefaultSavePlanner(enable_plan_caching=True))
        assert writer.handle.wait(60)
        same(state, loaded(run, state, step))


def test_only_what_is_needed_is_fetched(run: Checkpoints) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    large = {"model": {"a": torch.rand(1000, 500), "b": torch.rand(1000, 500)}, "step": torch.tensor(1)}
    writer = StorageWriter(run, 1)
    save_distributed(large, storage_writer=writer)
    size_bytes = writer.handle.result(60).size_bytes
    counting = CountingStore(run.catalog.store)
    reader = StorageReader(run)
    reader._ranges = VerifiedRanges(counting)
    found = {"model": {"b": torch.zeros(1000, 500)}}
    load_distributed(found, storage_reader=reader)
    assert torch.equal(large["model"]["b"], found["model"]["b"])  # type: ignore[index]
    assert counting.n_bytes < 0.6 * size_bytes


class CountingStore(WrappedStore):
    n_bytes = 0

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        assert end is not None, "only ranges are fetched"
        self.n_bytes += end - start
        return self.inner.get_file(key, path, start=start, end=end, if_match=if_match)


def test_a_flipped_bit_is_found_before_anything_is_loaded(run: Checkpoints, bucket: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    state = saved(run, 1)
    (path,) = bucket.glob("run1/checkpoints/data/*/__0_0.distcp")
    data = bytearray(path.read_bytes())
    data[data.index(state["model"]["weight"].numpy().tobytes()[:64])] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointException, match=r"DamagedSetError.*000000001_.*came wrong, twice"):
        loaded(run, state)


def test_a_shard_that_is_gone_is_named(run: Checkpoints, bucket: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    state = saved(run, 1)
    reader = StorageReader(run)
    for path in bucket.glob("run1/checkpoints/data/*/__0_0.distcp"):
        path.unlink()
    with pytest.raises(CheckpointException, match=r"DamagedSetError.*__0_0\.distcp"):
        load_distributed(empty(state), storage_reader=reader)


@pytest.mark.parametrize("scheme", ["file", "s3"])
def test_a_shard_that_shrank_is_found_at_once(scheme: str, request: pytest.FixtureRequest, spool_folder: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    uri, options = request.getfixturevalue(f"{scheme}_place")
    with wherry.Checkpoints(uri, "run1", spool=spool_folder, storage_options=options) as run:
        state = saved(run, 1)
        reader = StorageReader(run)
        store = run.catalog.store
        key = run.catalog.keys.data(reader.manifest.set) + "__0_0.distcp"
        path = spool_folder / "half"
        path.write_bytes(b"short")
        store.put_file(key, path)
        with pytest.raises(CheckpointException, match=r"DamagedSetError.*__0_0\.distcp"):
            load_distributed(empty(state), storage_reader=reader)
        assert store.n_requests is None or store.n_requests < 100  # it is not asked for until a deadline


@pytest.fixture
def file_place(bucket: Path) -> tuple[str, dict[str, Any]]:
    return bucket.as_uri(), {}


@pytest.fixture
def s3_place(seaweedfs_server: S3Server) -> tuple[str, dict[str, Any]]:
    return f"s3://{seaweedfs_server.bucket}/{uuid.uuid4()}", dict(seaweedfs_server.options)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


@pytest.fixture
def evil_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "evil"))
    return tmp_path / "evil"


def test_a_value_that_runs_code_is_refused(run: Checkpoints, evil_folder: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    saved(run, 1, state=state_of(1, evil=Evil()))
    with pytest.raises(CheckpointException, match=r"evil is refused.*add_safe_globals"):
        loaded(run, state_of(1, evil=None))
    assert not evil_folder.exists()


def test_metadata_that_runs_code_are_refused(run: Checkpoints, evil_folder: Path, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    assert run.save(1, folder).wait(60)
    with pytest.raises(CheckpointException, match=r"posix\.mkdir, which describes no tensor"):
        loaded(run, state_of(1))
    assert not evil_folder.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("torch", "load"),
        ("torch.distributed.checkpoint.filesystem", "FileSystemReader"),
        ("torch.distributed.checkpoint.filesystem", "os.system"),
        ("torch.distributed.checkpoint.metadata", "os"),
    ],
)
def test_metadata_name_nothing_but_descriptions(module: str, name: str) -> None:
    strings = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)]
    with pytest.raises(IntegrityError, match=re.escape(f"it names {module}.{name}, which describes no tensor")):
        read_dcp_metadata(io.BytesIO(b"\x80\x04" + b"".join(strings) + b"\x93."), "uri")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"relative_path": "../../../../latest.json"}, "which is no object of the set"),
        ({"relative_path": 7}, "does not say where .* lies"),
        ({"length": 2**60}, "does not say where .* lies"),
        ({"offset": -1}, "does not say where .* lies"),
        ({"wherry_crc32c": "0"}, "does not say where .* lies"),
        ({"wherry_crc32c": 0}, "came wrong, twice"),
    ],
    ids=str,
)
def test_a_place_that_cannot_be_is_refused(run: Checkpoints, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    torch_saves(tmp_path / "folder", state_of(1))
    path = tmp_path / "folder" / ".metadata"
    metadata = read_dcp_metadata(io.BytesIO(path.read_bytes()), "")
    for info in metadata.storage_data.values():
        info.wherry_crc32c = 0
        info.__dict__.update(wrong)
    path.write_bytes(pickle.dumps(metadata))
    assert run.save(1, tmp_path / "folder").wait(60)
    with pytest.raises(CheckpointException, match=words):
        loaded(run, state_of(1))


def torch_saves(folder: Path, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    save_distributed(state, checkpoint_id=folder)


def test_what_torchs_own_writer_has_saved_is_loaded(run: Checkpoints, tmp_path: Path) -> None:
    state = state_of(1)
    torch_saves(tmp_path / "folder", state)
    assert run.save(1, tmp_path / "folder").wait(60)
    same(state, loaded(run, state))


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_receipt_that_is_not_as_it_was_names_the_set(run: Checkpoints, bucket: Path, how: str) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    state = saved(run, 1)
    reader = StorageReader(run)
    for path in bucket.glob("run1/checkpoints/data/*/_ranks/*"):
        path.write_text("{}")
        if how == "missing":
            path.unlink()
    with pytest.raises(CheckpointException, match=r"the set 000000001_\w+ is damaged"):
        load_distributed(empty(state), storage_reader=reader)


def test_a_set_that_is_deleted_before_it_is_loaded_is_told_as_that(run: Checkpoints, bucket: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    state = saved(run, 1)
    saved(run, 2)
    reader = StorageReader(run, 1)
    run.prune(keep=Keep(last=1), delays=PruneDelays(grace_s=0.0))
    assert not list(bucket.glob(f"run1/checkpoints/data/{reader.manifest.set}/**/*.json"))
    with pytest.raises(CheckpointException, match="the set was pruned while it was restored"):
        load_distributed(empty(state), storage_reader=reader)


def test_a_set_without_metadata_is_told(run: Checkpoints, tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.api import CheckpointException

    assert run.save(1, {"weight": torch.ones(1)}).wait(60)
    with pytest.raises(CheckpointException, match=r"was not saved by torch\.distributed\.checkpoint"):
        loaded(run, state_of(1))


def test_a_step_is_saved_once_unless_it_may_be_overwritten(run: Checkpoints) -> None:
    saved(run, 1)
    with pytest.raises(AlreadyExistsError, match="step 1"):
        StorageWriter(run, 1)
    state = saved(run, 1, state=state_of(7), overwrite=True)
    same(state, loaded(run, state))
    assert [1, 2] == [one.set.version for one in run.list()]


def test_a_writer_is_for_one_set(run: Checkpoints) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    writer = StorageWriter(run, 1)
    save_distributed(state_of(1), storage_writer=writer)
    for again in (writer, pickle.loads(pickle.dumps(writer))):  # noqa: S301  our own
        with pytest.raises(CheckpointException, match="make a new StorageWriter for each save"):
            save_distributed(state_of(1), storage_writer=again)
    assert writer.handle.wait(60)
    assert run.latest() is not None


def test_a_checkpoint_id_beside_the_step_is_refused(run: Checkpoints) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    with pytest.raises(ConfigError, match="leave it out"):
        save_distributed(state_of(1), storage_writer=StorageWriter(run, 1), checkpoint_id="elsewhere")
    saved(run, 2)
    with pytest.raises(ConfigError, match="leave it out"):
        load_distributed(state_of(1), storage_reader=StorageReader(run), checkpoint_id="elsewhere")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("thread_count", [1, 2])
def test_a_save_that_fails_is_no_set(run: Checkpoints, thread_count: int) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    class Broken(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            raise ZeroDivisionError(write_item.index.fqn)

    writer = StorageWriter(run, 1, thread_count=thread_count)
    with pytest.raises(CheckpointException):
        save_distributed(state_of(1), storage_writer=writer, planner=Broken())
    with pytest.raises(SetFailedError, match="rank 0 could not store its part"):
        writer.handle.result(60)
    with pytest.raises(NotFoundError):
        StorageReader(run)
    with contextlib.suppress(UploadFailed):
        run.flush()


def test_the_rank_that_coordinates_must_be_rank_0(bucket: Path, spool_folder: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    world = World(1, 2, 1)
    with (
        wherry.Checkpoints(bucket, "run1", attempt=1, world=world, spool=spool_folder) as second,
        pytest.raises(CheckpointException, match=r"rank 1 of 2 coordinates this save.*world="),
    ):
        save_distributed(state_of(1), storage_writer=StorageWriter(second, 1))


def test_a_set_of_another_size_is_told(run: Checkpoints) -> None:
    import torch
    from torch.distributed.checkpoint.api import CheckpointException

    saved(run, 1)
    with pytest.raises(CheckpointException, match=r"ize mismatch|has the size"):
        loaded(run, {"model": {"weight": torch.zeros(300, 41)}})


def test_the_next_set_has_the_loaded_one_as_its_parent(run: Checkpoints) -> None:
    state = saved(run, 1)
    saved(run, 2)
    loaded(run, state, str(run.list()[-2].set))
    saved(run, 3)
    parents = [one.parent and one.parent.step for one in run.list()]
    assert [None, None, 1] == parents


def test_tensors_that_do_not_change_are_sent_once_if_each_has_a_file_of_its_own(bucket: Path, spool_folder: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    frozen = state_of(1)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder, dedupe=True) as run:
        for step in (10, 20, 30):
            state = saved(run, step, {**frozen, "adapter": torch.rand(step)}, single_file_per_rank=False)
        newest = run.find(30)
        assert [10] == [one.set.step for one in newest.references]
        assert newest.shared_bytes >= 300 * 40 * 4
        loaded = empty(state)
        load_distributed(loaded, storage_reader=StorageReader(run, "latest"))
        same(state, loaded)
    with wherry.Checkpoints(bucket, "run2", spool=spool_folder, dedupe=True) as run:
        for step in (10, 20):
            run.save(step, frozen["model"]).result(60)
        assert run.find(20).shared_bytes == run.find(20).size_bytes, "torch.save writes equal tensors as equal bytes"
