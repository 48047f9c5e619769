"""State dicts of torch in a set, and checkpoints that are sent to another process."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import io
import json
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.safetensors_file import read_safetensors
from wherry.checkpoints.state_dicts import write_state
from wherry.checkpoints.world import World
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


@pytest.fixture
def run(tmp_path: Path, spool_folder: Path) -> Iterator[Checkpoints]:
    with wherry.Checkpoints(tmp_path / "bucket", "run1", spool=spool_folder) as checkpoints:
        yield checkpoints


def there_and_back(run: Checkpoints, state: Mapping[str, object], **how: Any) -> dict[str, Any]:
    assert run.save(1, state, **how).wait(60)
    return run.load(1)


@pytest.mark.large
def test_a_training_state_comes_back(run: Checkpoints) -> None:
    torch = importlib.import_module("torch")
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    state = OrderedDict(
        model=model.state_dict(),
        optimizer=optimizer.state_dict(),
        half=torch.ones(5, dtype=torch.bfloat16),
        loss=np.float32(0.5),
        order=np.arange(5),
        random=torch.get_rng_state(),
        epoch=3,
        names=("a", None, 1.5, True, b"bytes"),
    )
    found = there_and_back(run, state)
    assert list(state) == list(found)
    assert type(found["model"]) is OrderedDict
    assert all(torch.equal(value, found["model"][name]) for name, value in model.state_dict().items())
    assert torch.equal(state["optimizer"]["state"][0]["exp_avg"], found["optimizer"]["state"][0]["exp_avg"])
    assert (found["half"].dtype, found["loss"], type(found["loss"])) == (torch.bfloat16, np.float32(0.5), np.float32)
    assert np.array_equal(state["order"], found["order"])
    assert (state["epoch"], state["names"]) == (found["epoch"], found["names"])
    optimizer.load_state_dict(found["optimizer"])


@pytest.mark.large
def test_tied_weights_stay_tied(run: Checkpoints) -> None:
    torch = importlib.import_module("torch")
    weight = torch.rand(100)
    found = there_and_back(run, {"embedding": weight, "head": weight, "tail": weight[50:]})
    found["embedding"][99] = 7.0
    assert found["head"][99] == found["tail"][49] == 7.0


@pytest.mark.large
@pytest.mark.parametrize("how", [{}, {"format": "safetensors"}], ids=str)
def test_an_empty_state_is_one(run: Checkpoints, how: dict[str, str]) -> None:
    assert there_and_back(run, {}, **how) == {}


@pytest.mark.large
@pytest.mark.parametrize("how", [{}, {"format": "safetensors"}], ids=str)
def test_tensors_outlive_the_file_that_they_are_mapped_from(run: Checkpoints, tmp_path: Path, how: dict[str, str]) -> None:
    torch = importlib.import_module("torch")
    weight = torch.rand(500_000)
    found = there_and_back(run, {"weight": weight}, **how)
    assert any("(deleted)" in line for line in mapped() if "wherry-load-" in line)
    found["weight"] += 1
    assert torch.equal(weight + 1, found["weight"])
    assert torch.equal(weight, run.load(1)["weight"])
    del found
    gc.collect()
    assert [] == [line for line in mapped() if "wherry-load-" in line]


def mapped() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


@pytest.mark.large
@pytest.mark.parametrize("location", ["cpu", "device", "function", "meta"])
def test_map_location_is_torchs(run: Checkpoints, location: str) -> None:
    torch = importlib.import_module("torch")
    run.save(1, {"weight": torch.rand(5)}).wait(60)
    where = {"device": torch.device("cpu"), "function": lambda storage, _: storage}.get(location, location)
    assert run.load(1, map_location=where)["weight"].device.type == ("meta" if location == "meta" else "cpu")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


@pytest.mark.large
@pytest.mark.parametrize("kind", ["torch.save", "plain pickle", "old format"])
def test_a_malicious_pickle_is_refused(
    run: Checkpoints, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch = importlib.import_module("torch")
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "evil"))
    if kind == "torch.save":
        run.save(1, {"model": Evil()}).wait(60)
        assert "load() will refuse posix.mkdir" in caplog.text
    else:
        path = tmp_path / "state.pt"
        if kind == "plain pickle":
            path.write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
        else:
            torch.save({"model": Evil()}, path, _use_new_zipfile_serialization=False)
        run.save(1, path).wait(60)
    with pytest.raises(wherry.IntegrityError, match=r"holds more than tensors and plain values \(it would call posix.mkdir\)"):
        run.load(1)
    assert not (tmp_path / "evil").exists()


@pytest.mark.large
def test_a_file_of_the_old_format_is_read_without_mapping(run: Checkpoints, tmp_path: Path) -> None:
    torch = importlib.import_module("torch")
    torch.save({"weight": torch.ones(3)}, tmp_path / "state.pt", _use_new_zipfile_serialization=False)
    run.save(1, tmp_path / "state.pt").wait(60)
    assert torch.equal(torch.ones(3), run.load(1)["weight"])


@pytest.mark.large
def test_what_is_no_state_dict_is_told(run: Checkpoints, tmp_path: Path) -> None:
    torch = importlib.import_module("torch")
    (tmp_path / "other.txt").write_text("words")
    run.save(1, tmp_path / "other.txt").wait(60)
    with pytest.raises(ConfigError, match=r"has no state\.pt but other\.txt"):
        run.load(1)
    (tmp_path / "state.pt").write_text("words")
    run.save(2, tmp_path / "state.pt").wait(60)
    with pytest.raises((ConfigError, wherry.IntegrityError), match=r"state\.pt"):
        run.load(2)
    torch.save(torch.ones(1), tmp_path / "state.pt")
    run.save(3, tmp_path / "state.pt").wait(60)
    with pytest.raises(ConfigError, match="a Tensor, not a state dict"):
        run.load(3)


@pytest.mark.large
def test_safetensors_keep_every_kind_of_tensor(run: Checkpoints, tmp_path: Path) -> None:
    torch = importlib.import_module("torch")
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
    state = {f"{kind} ä": torch.arange(7).to(kind) for kind in kinds}
    state |= {"one": torch.tensor(5), "none": torch.zeros(0, 3), "turned": torch.arange(6.0).reshape(2, 3).T}
    found = there_and_back(run, state, format="safetensors")
    assert set(state) == set(found)
    for name, value in state.items():
        assert (value.dtype, value.shape) == (found[name].dtype, found[name].shape)
        assert torch.equal(value, found[name])
    assert ["state.safetensors"] == [path.name for path in run.restore(1, tmp_path / "folder").iterdir()]


@pytest.mark.large
def test_safetensors_refuse_what_they_do_not_hold(run: Checkpoints) -> None:
    torch = importlib.import_module("torch")
    weight = torch.ones(10)
    wrong: dict[str, dict[Any, Any]] = {
        "a dict of its own": {"optimizer": {"state": weight}},
        "a float": {"loss": 0.5},
        "share memory": {"embedding": weight, "head": weight[5:]},
        "sparse": {"sparse": weight.to_sparse()},
        "no name": {1: weight},
        "which safetensors does not know": {"wide": torch.ones(1, dtype=torch.complex128)},
    }
    for step, (words, state) in enumerate(wrong.items()):
        with pytest.raises(ConfigError, match=words):
            run.save(step, state, format="safetensors")
    with pytest.raises(ConfigError, match="'torch' or 'safetensors'"):
        run.save(9, {"weight": weight}, format="numpy")
    with pytest.raises(ConfigError, match="is that of a state dict"):
        run.save(9, ".", format="safetensors")
    with contextlib.suppress(wherry.UploadFailed):
        run.flush()


HEADER = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


@pytest.mark.large
@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"{}", b"12345678"),
        (b"[]", b""),
        (b"\xff\xfe", b""),
        (b"[" * 5000, b""),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"12345678"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 12]}}, b"12345678"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, b"12345678"),
        ({"a": {"dtype": "F32", "shape": [2**60, 2**60], "data_offsets": [0, 8]}}, b"12345678"),
        ({"a": {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]}}, b"12345678"),
        ({"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, b"12345678"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"12345678"),
        ({**HEADER, "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"12345678"),
        ({**HEADER, "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}, b"1234567812345678"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234"),
        ({"a": 7}, b""),
    ],
    ids=range(15),
)
def test_a_damaged_safetensors_file_is_refused(tmp_path: Path, header: Any, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "state.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    with pytest.raises(wherry.IntegrityError, match="no sound safetensors file"):
        read_safetensors(path)


@pytest.mark.large
@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 2**63), struct.pack("<Q", 100) + b"{}"])
def test_a_truncated_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.safetensors").write_bytes(content)
    with pytest.raises(wherry.IntegrityError, match="no sound safetensors file"):
        read_safetensors(tmp_path / "state.safetensors")


@pytest.mark.large
def test_a_rank_loads_its_own_file_only(tmp_path: Path, spool_folder: Path) -> None:
    torch = importlib.import_module("torch")
    ranks = [
        wherry.Checkpoints(tmp_path / "bucket", "run1", attempt=1, world=World(rank, 2, rank), spool=spool_folder)
        for rank in (0, 1)
    ]
    handles = [one.save(1, {"rank": torch.tensor(rank)}) for rank, one in enumerate(ranks)]
    assert all(handle.wait(60) for handle in handles)
    (other,) = (tmp_path / "bucket").rglob("rank-00000.pt")
    other.unlink()
    assert ranks[1].load(1)["rank"] == 1
    with pytest.raises(wherry.IntegrityError, match="rank-00000"):
        ranks[0].load(1)
    for one in ranks:
        one.close()


@pytest.mark.large
@pytest.mark.parametrize(
    ("location", "said"), [("xx", "is no device"), (3.5, "is no device"), ("cuda:0", "sees no such device here")]
)
def test_a_device_that_is_not_here_is_told(run: Checkpoints, location: object, said: str) -> None:
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        location, said = "xx", "is no device"
    run.save(1, {"weight": torch.ones(3)}).wait(60)
    with pytest.raises(ConfigError, match=rf"map_location={location!r}.*{said}"):
        run.load(1, map_location=location)


@pytest.mark.large
def test_a_full_disk_is_told_as_one() -> None:
    """And not as the complaint that torch's writer makes of its file then."""
    torch = importlib.import_module("torch")

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 100:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    with pytest.raises(OSError, match="No space left"):
        write_state({"weight": torch.ones(3000)}, Full())
