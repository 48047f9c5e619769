"""Checkpoints of other programs: found, judged by what their layout allows, fetched."""

from __future__ import annotations

import collections
import errno
import io
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wherry
from command_line import CommandLine
from servers.real import S3Server
from wherry.checkpoints import foreign
from wherry.checkpoints.foreign.dcp_files import files_named_by
from wherry.checkpoints.foreign.layouts import checkpoints_in
from wherry.errors import IntegrityError, NotFoundError, PermanentError
from wherry.store import ObjectMeta


def fill(root: Path, names: dict[str, bytes]) -> Path:
    for name, data in names.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def save_dcp(folder: Path, threads: int = 1) -> Path:
    """A checkpoint of torch.distributed.checkpoint itself, with what states of training hold."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    state = {
        "model": {"w": torch.ones(64, 64), "b": torch.zeros(3, dtype=torch.bfloat16)},
        "optimizer": {"state": [{"step": torch.tensor(3.0)}], "lr": 0.1},
        "order": collections.OrderedDict(a=1, b=(2, 3)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, storage_writer=FileSystemWriter(folder, thread_count=threads), no_dist=True)
    return folder


def composer(root: Path, n_ranks: int, *batches: int) -> Path:
    names = {f"run/checkpoints/ep0-ba{ba}-rank{rank}.pt": b"state" * ba for ba in batches for rank in range(n_ranks)}
    return fill(root, names)


def trainer(root: Path, step: int) -> Path:
    index = {
        "metadata": {"total_size": 30},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    folder = f"out/checkpoint-{step}"
    return fill(
        root,
        {
            f"{folder}/model.safetensors.index.json": json.dumps(index).encode(),
            f"{folder}/model-00001-of-00002.safetensors": b"x" * 20,
            f"{folder}/model-00002-of-00002.safetensors": b"y" * 20,
            f"{folder}/optimizer.pt": b"moments",
            f"{folder}/trainer_state.json": b"{}",
        },
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def judged(root: Path) -> list[tuple[str, str, int | None, str]]:
    return [(one.layout, one.name, one.step, one.state) for one in foreign.find(root).checkpoints]


def proofs(root: Path) -> list[str]:
    return [one.proof for one in foreign.find(root).checkpoints]


# -- torch.distributed.checkpoint


@pytest.mark.large
@pytest.mark.parametrize("threads", [1, 3])
def test_a_folder_of_torch_is_complete_when_all_files_of_its_metadata_are_there(tmp_path: Path, threads: int) -> None:
    folder = save_dcp(tmp_path / "ckpt" / "step_100", threads)
    n = len([path for path in folder.iterdir() if path.suffix == ".distcp"])
    assert judged(tmp_path) == [("dcp", "ckpt/step_100", 100, "complete")]
    assert proofs(tmp_path) == [f"metadata there, {n} of {n} files named by it are there and long enough"]
    back = foreign.restore(tmp_path, "ckpt/step_100", tmp_path.parent / f"{tmp_path.name}-back")
    assert contents(folder) == contents(back)


@pytest.mark.large
def test_our_reader_and_torch_find_the_same_files(tmp_path: Path) -> None:
    folder = save_dcp(tmp_path / "ckpt", 3)
    data = (folder / ".metadata").read_bytes()
    metadata = pickle.loads(data)  # noqa: S301  our own
    expected: dict[str, int] = {}
    for place in metadata.storage_data.values():
        expected[place.relative_path] = max(expected.get(place.relative_path, 0), place.offset + place.length)
    assert expected == files_named_by(data, ".metadata")
    for name, size in expected.items():
        assert (folder / name).stat().st_size >= size


@pytest.mark.large
def test_a_file_of_torch_that_is_missing_or_short_is_named(tmp_path: Path) -> None:
    folder = save_dcp(tmp_path / "ckpt", 3)
    first, second, *_ = sorted(folder.glob("*.distcp"))
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    assert f"{first.name} has {len(whole) // 2} of" in proofs(tmp_path)[0]
    first.write_bytes(whole)
    second.unlink()
    assert f"{second.name} is missing" in proofs(tmp_path)[0]
    assert judged(tmp_path)[0][3] == "incomplete"
    (folder / ".metadata").unlink()
    assert proofs(tmp_path) == ["no .metadata, which torch writes last"]
    with pytest.raises(PermanentError, match="not complete"):
        foreign.restore(tmp_path, "ckpt", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert foreign.restore(tmp_path, "ckpt", tmp_path / "back", incomplete=True).is_dir()


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/this-must-not-be-run",)


def _laughs() -> bytes:
    """A key of 2^60 nested tuples, each twice the one before: hashing it would never end."""
    out = io.BytesIO()
    out.write(b"\x80\x04}")
    out.write(b")")
    for _ in range(60):
        out.write(b"2\x86")
    out.write(b"K\x01s.")
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(_Evil()),
        pickle.dumps({"a": 1}),
        pickle.dumps(_Evil(), protocol=0),
        b"",
        b"\x80\x04",
        b"not a pickle",
        b"\x80\x04K\x01r\xff\xff\xff\x7f.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        b"\x80\x04\x82\x01.",
        b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\n}b.",
        b"\x80\x04cbuiltins\neval\n.",
        b"\x80\x04ctorch\nhub.load\n.",
        _laughs(),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_a_malicious_metadata_is_refused_and_nothing_of_it_is_run(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(IntegrityError, match="refused as metadata"):
        files_named_by(data, "s3://b/.metadata")
    fill(tmp_path, {"ckpt/.metadata": data, "ckpt/__0_0.distcp": b"x"})
    assert not Path("/tmp/this-must-not-be-run").exists()
    assert judged(tmp_path) == [("dcp", "ckpt", None, "unproven")]


@pytest.mark.large
def test_a_metadata_that_names_a_file_outside_of_its_folder_is_refused(tmp_path: Path) -> None:
    folder = save_dcp(tmp_path / "ckpt")
    path = folder / ".metadata"
    name = next(folder.glob("*.distcp")).name.encode()
    path.write_bytes(path.read_bytes().replace(name, (b"../" + name)[: len(name)]))
    (one,) = foreign.find(tmp_path).checkpoints
    assert one.state == "unproven" and "refused" in one.proof


# -- the others


def test_ranks_of_composer_are_counted(tmp_path: Path) -> None:
    composer(tmp_path, 8, 100, 200)
    assert judged(tmp_path) == [
        ("composer", "run/checkpoints/ep0-ba100", 100, "unproven"),
        ("composer", "run/checkpoints/ep0-ba200", 200, "unproven"),
    ]
    assert proofs(tmp_path)[0].startswith("all 8 ranks from 0 to 7 there; no proof")
    folder = tmp_path / "run/checkpoints"
    (folder / "ep0-ba200-rank7.pt").unlink()
    assert "others in this folder have 8" in proofs(tmp_path)[1]
    (folder / "ep0-ba200-rank3.pt").unlink()
    assert proofs(tmp_path)[1] == "6 ranks there, rank 3 is missing"
    (folder / "ep0-ba100-rank2.pt").write_bytes(b"")
    assert [one.state for one in foreign.find(tmp_path).checkpoints] == ["incomplete", "incomplete"]


def test_a_pointer_of_composer_leads_to_its_checkpoint(tmp_path: Path) -> None:
    composer(tmp_path, 2, 100, 200)
    fill(
        tmp_path,
        {
            "run/checkpoints/latest-rank0.pt.symlink": b"run/checkpoints/ep0-ba100-rank0.pt\n",
            "run/checkpoints/old.symlink": b"run/checkpoints/ep0-ba7-rank0.pt",
            "run/checkpoints/odd.symlink": b"\xff\xfe",
            "run/checkpoints/large.symlink": b"x" * 10_000,
        },
    )
    found = foreign.find(tmp_path)
    assert [one.pointers for one in found.checkpoints] == [("run/checkpoints/latest-rank0.pt.symlink",), ()]
    assert [text.partition(" ")[0].rpartition("/")[2] for text in found.dangling] == [
        "large.symlink",
        "odd.symlink",
        "old.symlink",
    ]
    back = foreign.restore(tmp_path, "run/checkpoints/latest-rank0.pt.symlink", tmp_path / "back")
    assert sorted(path.name for path in back.iterdir()) == ["ep0-ba100-rank0.pt", "ep0-ba100-rank1.pt"]


def test_checkpoints_of_the_trainer_are_judged_by_their_index(tmp_path: Path) -> None:
    trainer(tmp_path, 500)
    folder = tmp_path / "out/checkpoint-500"
    assert judged(tmp_path) == [("transformers", "out/checkpoint-500", 500, "unproven")]
    assert proofs(tmp_path)[0].startswith("2 of 2 weight files named by the index are there; no proof for the optimizer's")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"y")
    assert "with 21 of 30 bytes" in proofs(tmp_path)[0]
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "1 of 2 weight files named by the index are there, model-00002-of-00002.safetensors is missing" in proofs(tmp_path)[0]
    assert judged(tmp_path)[0][3] == "incomplete"
    (folder / "model.safetensors.index.json").write_bytes(b"[1]")
    assert "no index of weights" in proofs(tmp_path)[0]
    (folder / "model.safetensors.index.json").unlink()
    assert proofs(tmp_path) == ["shards of weights without the index that names them"]
    (folder / "trainer_state.json").unlink()
    (folder / "model.safetensors").write_bytes(b"w")
    assert proofs(tmp_path)[0].startswith("no trainer_state.json")


def test_files_of_lightning_have_no_proof(tmp_path: Path) -> None:
    fill(tmp_path, {"lightning_logs/version_0/checkpoints/epoch=1-step=200.ckpt": b"a", "last.ckpt": b"b", "empty.ckpt": b""})
    found = {one.name: (one.step, one.state) for one in foreign.find(tmp_path).checkpoints}
    assert found == {
        "lightning_logs/version_0/checkpoints/epoch=1-step=200.ckpt": (200, "unproven"),
        "last.ckpt": (None, "unproven"),
        "empty.ckpt": (None, "incomplete"),
    }
    back = foreign.restore(tmp_path, "last.ckpt", tmp_path / "back")
    assert (back / "last.ckpt").read_bytes() == b"b"


@pytest.mark.large
def test_a_checkpoint_n_with_a_folder_of_torch_comes_back_whole(tmp_path: Path) -> None:
    fill(tmp_path, {"checkpoint-7/trainer_state.json": b"{}", "checkpoint-7/optimizer/x.bin": b"x"})
    save_dcp(tmp_path / "checkpoint-7" / "pytorch_model_fsdp_0")
    assert {name for _, name, _, _ in judged(tmp_path)} == {"checkpoint-7", "checkpoint-7/pytorch_model_fsdp_0"}
    back = foreign.restore(tmp_path, "checkpoint-7", tmp_path / "back")
    assert (back / "pytorch_model_fsdp_0" / ".metadata").is_file() and (back / "optimizer" / "x.bin").is_file()


@pytest.mark.large
def test_a_folder_of_two_layouts_is_shown_as_both_and_comes_back_whole(tmp_path: Path) -> None:
    save_dcp(tmp_path / "checkpoint-7")
    fill(tmp_path, {"checkpoint-7/trainer_state.json": b"{}", "checkpoint-7/optimizer/x.bin": b"x"})
    assert {("dcp", "complete"), ("transformers", "unproven")} == {(layout, state) for layout, _, _, state in judged(tmp_path)}
    back = foreign.restore(tmp_path, "checkpoint-7", tmp_path / "back")
    assert (back / "optimizer" / "x.bin").is_file() and (back / ".metadata").is_file()


# -- any store


@pytest.mark.large
def test_own_sets_are_none_of_others(tmp_path: Path, spool_folder: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    folder = save_dcp(tmp_path / "state")
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        checkpoints.save(5, folder).wait(60)
    assert foreign.find(bucket).checkpoints == ()


def test_hostile_names_and_unknown_sizes() -> None:
    names = ["../../x.ckpt", "a//b.ckpt", "a/\x07.ckpt", "checkpoint-5/../../evil", "ep0-ba1-rank99999999999.pt"]
    assert checkpoints_in({name: ObjectMeta(name, 1) for name in names}) == []
    (one,) = checkpoints_in({"a.ckpt": ObjectMeta("a.ckpt", -1)})
    assert (one.state, one.size_bytes) == ("unproven", 0)
    (one,) = checkpoints_in({"ep0-ba1-rank999999.pt": ObjectMeta("k", 1)})
    assert one.proof == "1 ranks there, rank 0 is missing"


def test_a_listing_is_bounded(tmp_path: Path) -> None:
    composer(tmp_path, 2, 100, 200)
    found = foreign.find(tmp_path, most_objects=3)
    assert found.is_cut
    assert [len(one.objects) for one in found.checkpoints] == [2, 1]


def test_nothing_is_left_of_a_restore_that_fails(tmp_path: Path) -> None:
    trainer(tmp_path / "bucket", 500)
    with pytest.raises(NotFoundError, match="no checkpoint 'checkpoint-9'"):
        foreign.restore(tmp_path / "bucket", "checkpoint-9", tmp_path / "back")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        foreign.restore(tmp_path / "bucket", "latest", tmp_path / "full")
    assert not (tmp_path / "back").exists()


def test_a_checkpoint_without_room_is_refused_before_any_byte_moves(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open(tmp_path / "bucket" / "last.ckpt", "wb") as file:
        file.write(b"weights")
        file.truncate(2**43)  # a hole
    with pytest.raises(OSError, match=r"no room for the checkpoint last\.ckpt: 8796093022208 bytes are to come") as caught:
        foreign.restore(tmp_path / "bucket", "last.ckpt", tmp_path / "back")
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "back").exists()
    (left,) = (path for path in tmp_path.iterdir() if path.name.startswith(".back"))
    assert list(left.iterdir()) == []


def test_of_two_that_restore_to_one_folder_the_second_finds_it_whole(tmp_path: Path) -> None:
    trainer(tmp_path / "bucket", 500)

    def restore(_: int) -> str:
        try:
            return foreign.restore(tmp_path / "bucket", "latest", tmp_path / "back").name
        except FileExistsError as error:
            return str(error)

    for _ in range(5):
        with ThreadPoolExecutor() as pool:
            said = sorted(pool.map(restore, range(4)))
        assert said == [*[f"{tmp_path / 'back'} is not empty: give a folder that is not there yet"] * 3, "back"]
        assert contents(tmp_path / "back") == contents(tmp_path / "bucket" / "out" / "checkpoint-500")
        shutil.rmtree(tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["bucket"]


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    if request.param == "memory":
        yield f"memory://foreign-{tmp_path.name}", {}
    else:
        server: S3Server = request.getfixturevalue("seaweedfs_server")
        yield f"s3://{server.bucket}/foreign/{tmp_path.name}", server.options


@pytest.mark.large
def test_they_are_found_and_fetched_in_any_store(
    place: tuple[str, dict[str, object]], tmp_path: Path, spool_folder: Path
) -> None:
    uri, options = place
    root = composer(trainer(tmp_path / "here", 500), 2, 100)
    save_dcp(root / "torch" / "step-9")
    with wherry.Uploader(uri, storage_options=options, spool=spool_folder) as uploader:
        uploader.put(root, "old").wait(60)
        uploader.flush(60)
    found = foreign.find(f"{uri}/old", storage_options=options)
    assert {(one.name, one.state) for one in found.checkpoints} == {
        ("out/checkpoint-500", "unproven"),
        ("run/checkpoints/ep0-ba100", "unproven"),
        ("torch/step-9", "complete"),
    }
    back = foreign.restore(f"{uri}/old", "torch/step-9", tmp_path / "back", storage_options=options)
    assert contents(root / "torch" / "step-9") == contents(back)


def test_the_command_shows_and_restores_them(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    root = composer(trainer(tmp_path / "bucket", 500), 2, 100)
    out, _ = line.run("checkpoints", root)
    rows = {text.split()[1]: text for text in out.splitlines()}
    assert rows["LAYOUT"].split() == ["STEP", "LAYOUT", "AGE", "SIZE", "OBJECTS", "STATE", "NAME", "PROOF"]
    assert "all 2 ranks from 0 to 1 there; no proof" in rows["composer"]
    assert "out/checkpoint-500" in rows["transformers"]
    shown = [json.loads(text) for text in line.run("checkpoints", root, "--json")[0].splitlines()]
    assert {("composer", 100, 2), ("transformers", 500, 5)} == {(one["layout"], one["step"], one["n_objects"]) for one in shown}
    out, err = line.run("checkpoints", "restore", root, tmp_path / "back", "--step", 500)
    assert "restored" in out and "written by another program" in err
    assert contents(root / "out/checkpoint-500") == contents(tmp_path / "back")
    line.run("checkpoints", "restore", root, tmp_path / "ranks", "--which", "run/checkpoints/ep0-ba100")
    assert len(contents(tmp_path / "ranks")) == 2
