"""Checkpoint sets: how long save() blocks, what a restore costs, how many requests latest() and a commit take.

1. A state dict of $SIZE_MIB (1024): plain `torch.save` to the disk of the spool, `torch.save` and a copy of the file, and
   `Checkpoints.save`, which writes it straight into the spool. Each is measured from the call to its return.
2. The same bytes from SeaweedFS, object and copy in memory: `Checkpoints.restore`, boto3's transfer manager with more threads and
   larger parts than its defaults, and obstore, where it is installed (`pip install obstore`). Only the first verifies.
3. Requests of `latest()` over 1,000 sets, and of a commit of 10,000 ranks: counted in memory, as a store would see them.
4. Ten saves of a folder of a tenth of $SIZE_MIB, of which 90 % never change, to SeaweedFS, with and without `dedupe`: how long
   save() blocks, when the set is committed, what is sent and how many requests there are, counted by a proxy.

$ROUNDS (5): rounds are interleaved, and their order turns.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from measure import MIB, folder, machine, make_file, seconds, settle, spread, table

from servers.proxy import fault_proxy
from servers.real import S3Server, fast_folder, seaweedfs
from wherry import Checkpoints
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.protocol.attempts import claim
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import commit
from wherry.checkpoints.protocol.documents import put_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.store import ObjectMeta, ObjectStore, PutOptions, TakeBlock
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SIZE_BYTES = int(os.environ.get("SIZE_MIB", "1024")) * MIB
N_SETS = 1000
N_SAVES = 10
N_RANKS = 10_000
#: Keys that one request of a listing answers, as S3 does.
PAGE = 1000


class CountedStore(WrappedStore):
    """Counts the requests that a store of one page of 1,000 keys would get."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.n_calls = 0

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        self.n_calls += 1
        return super().put_file(key, path, put)

    def head(self, key: str) -> ObjectMeta:
        self.n_calls += 1
        return super().head(key)

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        self.n_calls += 1
        super().read(key, take, start=start, end=end, if_match=if_match)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        found = [*super().list(prefix, start_after=start_after)]
        self.n_calls += max(1, -(-len(found) // PAGE))
        return iter(found)


def state_dict() -> dict[str, torch.Tensor]:
    """Random tensors of 64 MiB each."""
    count = max(1, SIZE_BYTES // (64 * MIB))
    return {f"layer{at}.weight": torch.randn(SIZE_BYTES // count // 4) for at in range(count)}


def interleaved(works: dict[str, Callable[[], object]], after: Callable[[], object]) -> dict[str, list[float]]:
    """The seconds of each, round by round; `after` clears up between two."""
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for at in range(ROUNDS + 1):
        for name in names[at % len(names) :] + names[: at % len(names)]:
            took = seconds(works[name])
            if at:  # the first round warms up
                times[name].append(took)
            after()
    return times


def blocking(base: Path) -> None:
    state = state_dict()
    step = iter(range(10**6))
    with Checkpoints(base / "bucket", "run", spool=base / "spool") as checkpoints:
        checkpoints.save(next(step), {"warm": torch.zeros(1)}).result(60)

        def save_and_copy() -> None:
            torch.save(state, base / "plain.pt")
            shutil.copyfile(base / "plain.pt", base / "copy.pt")

        def clear() -> None:
            checkpoints.flush(120)
            for path in (base / "plain.pt", base / "copy.pt"):
                path.unlink(missing_ok=True)
            for path in (base / "bucket" / "run" / "checkpoints" / "data").glob("*/state.pt"):
                path.unlink()
            settle()

        times = interleaved(
            {
                "`torch.save`": lambda: torch.save(state, base / "plain.pt"),
                "`torch.save` and a copy": save_and_copy,
                "`Checkpoints.save(state)`": lambda: checkpoints.save(next(step), state),
            },
            clear,
        )
    one, both = times["`torch.save`"], times["`torch.save` and a copy"]
    rows = [
        [
            name,
            spread(taken, 1000, 0),
            f"{statistics.median(taken) / statistics.median(one):.2f}",
            f"{statistics.median(taken) / statistics.median(both):.2f}",
        ]
        for name, taken in times.items()
    ]
    header = ["what", "ms", "x torch.save", "x torch.save and copy"]
    table(f"Training is blocked for, {SIZE_BYTES // MIB} MiB state dict ({machine()})", header, rows)


def restoring(server: S3Server, base: Path) -> None:
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    uri = f"s3://{server.bucket}/bench"
    with Checkpoints(uri, "run", spool=base / "spool", storage_options=server.options) as checkpoints:
        name = checkpoints.save(1, state_dict()).result(300).set
        key = f"bench/run/checkpoints/data/{name}/state.pt"
        client = boto3.client(
            "s3",
            endpoint_url=server.url,
            aws_access_key_id=str(server.options["aws_access_key_id"]),
            aws_secret_access_key=str(server.options["aws_secret_access_key"]),
            region_name="us-east-1",
            config=Config(max_pool_connections=32),
        )
        tuned = TransferConfig(multipart_chunksize=16 * MIB, max_concurrency=16, io_chunksize=MIB)
        works: dict[str, Callable[[], object]] = {
            "`Checkpoints.restore`, verified": lambda: checkpoints.restore(1, base / "back"),
            "boto3, 16 threads of 16 MiB": lambda: client.download_file(server.bucket, key, str(base / "boto3"), Config=tuned),
        }
        if find_spec("obstore"):
            works["obstore, 16 ranges of 16 MiB"] = lambda: asyncio.run(by_obstore(server, key, base / "obstore"))

        def clear() -> None:
            shutil.rmtree(base / "back", ignore_errors=True)
            for path in (base / "boto3", base / "obstore"):
                path.unlink(missing_ok=True)

        times = interleaved(works, clear)
    ours = times["`Checkpoints.restore`, verified"]
    rows = [
        [what, spread(taken, 1000, 0), f"{statistics.median(taken) / statistics.median(ours):.2f}"]
        for what, taken in times.items()
    ]
    table(f"{SIZE_BYTES // MIB} MiB from SeaweedFS ({machine()})", ["what", "ms", "x restore"], rows)


async def by_obstore(server: S3Server, key: str, path: Path) -> None:
    obstore, stores = import_module("obstore"), import_module("obstore.store")

    store = stores.S3Store(
        server.bucket,
        endpoint=server.url,
        access_key_id=server.options["aws_access_key_id"],
        secret_access_key=server.options["aws_secret_access_key"],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    size = (await obstore.head_async(store, key))["size"]
    gate = asyncio.Semaphore(16)
    with open(path, "wb") as file:
        file.truncate(size)

        async def one(start: int) -> None:
            async with gate:
                os.pwrite(
                    file.fileno(), await obstore.get_range_async(store, key, start=start, end=min(start + 16 * MIB, size)), start
                )

        await asyncio.gather(*(one(start) for start in range(0, size, 16 * MIB)))


def requests() -> None:
    rows = []
    store = CountedStore(MemoryStore(StoreURI("memory", "bench"), {}))
    keys = RunKeys("run/checkpoints")
    attempt = claim(store, keys, None).key

    def save(name: SetName, n_ranks: int) -> None:
        for rank in range(n_ranks):
            put_small(store, f"{keys.data(name)}part{rank}", b"x", if_absent=True)
        store.n_calls = 0
        for rank in range(n_ranks):
            receipt = Receipt(name, rank, n_ranks, "file", (SetObject(f"part{rank}", 1, 0),))
            data = receipt.to_bytes()
            put_small(store, keys.ranks(name) + receipt.name(data), data, if_absent=False)
        commit(store, keys, name, n_ranks)

    for step in range(N_SETS):
        save(SetName(attempt, step), 1)
    store.n_calls = 0
    assert Catalog(store, keys).newest() is not None
    rows.append([f"`latest()` over {N_SETS:,} sets", str(store.n_calls)])
    save(SetName(attempt, N_SETS), N_RANKS)
    rows.append([f"receipts and commit of {N_RANKS:,} ranks, without deputies", str(store.n_calls)])
    manifest = Catalog(store, keys).read(SetName(attempt, N_SETS))
    rows.append(["bytes of that manifest", str(len(manifest.to_bytes()))])
    table("Requests", ["what", "number"], rows)


def sharing(server: S3Server, base: Path) -> None:
    rows = []
    for dedupe in (False, True):
        model = base / f"model-{dedupe}"
        model.mkdir()
        make_file(model / "base.bin", SIZE_BYTES * 9 // 100)
        blocked: list[float] = []
        committed: list[float] = []
        with fault_proxy("127.0.0.1", server.port) as proxy:
            uri, options = f"s3://{server.bucket}/sharing-{dedupe}", {**server.options, "endpoint_url": proxy.url}
            with Checkpoints(uri, "run", spool=base / "spool", storage_options=options, dedupe=dedupe) as checkpoints:
                for step in range(N_SAVES):
                    make_file(model / "adapter.bin", SIZE_BYTES // 100)
                    begun_s, n_requests = time.perf_counter(), len(proxy.log)
                    handle = checkpoints.save(step, model)
                    blocked.append(time.perf_counter() - begun_s)
                    handle.result(300)
                    committed.append(time.perf_counter() - begun_s)
                    n_requests = len(proxy.log) - n_requests
            sent_bytes = proxy.request_bytes("PUT", r"/data/[^/]*/[^_?]")
        shutil.rmtree(model)
        first, later = f"{1000 * committed[0]:.0f}", spread(committed[1:], 1000, 0)
        rows.append([str(dedupe), spread(blocked, 1000, 0), first, later, f"{sent_bytes / MIB:.0f}", str(n_requests)])
    title = f"{N_SAVES} saves of {SIZE_BYTES // 10 // MIB} MiB, 90 % of which never change ({machine()})"
    header = ["dedupe", "save() blocks, ms", "first commit, ms", "later commits, ms", "MiB sent", "requests of the last save"]
    table(title, header, rows)


def main() -> None:
    requests()
    with folder() as base:
        blocking(base)
    with fast_folder() as base:
        (base / "server").mkdir()
        with seaweedfs(base / "server") as server:
            restoring(server, base)
            sharing(server, base)


if __name__ == "__main__":
    main()
