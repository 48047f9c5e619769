"""Which tables there are: what is done to what server, by which clients, and what wherry is to reach in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from driver import Row

MIB = 2**20

SOCKETS = Row("Python sockets", "bare", "sockets", is_ours=True)
WHERRY = Row("wherry", "ours", "wherry", is_ours=True)
BY_COPY = Row("wherry, the file kept", "ours", "wherry-copy", is_ours=True)
CALLS = Row("wherry, a call for each file", "ours", "wherry-calls", is_ours=True)
STORE = Row("wherry's store alone", "ours", "wherry-store", is_ours=True)
OBSTORE = Row("obstore", "rust", "obstore")
BOTO3_TUNED = Row("boto3 tuned", "boto", "boto3-tuned")
BOTO3 = Row("boto3", "boto", "boto3")
S5CMD = Row("s5cmd", "commands", "s5cmd", is_command=True)
AWSCRT = Row("awscrt", "crt", "awscrt")
RCLONE = Row("rclone", "commands", "rclone", is_command=True)
AWSCLI = Row("AWS CLI", "commands", "awscli", is_command=True)
S3FS = Row("s3fs", "python_fs", "s3fs")
TORCH = Row("s3torchconnector", "torch_connector", "s3torchconnector")
#: Whole objects; and the floor.
LARGE = (SOCKETS, WHERRY, OBSTORE, BOTO3_TUNED, S5CMD, AWSCRT, RCLONE, AWSCLI, S3FS, TORCH, BOTO3)
SMALL = (SOCKETS, STORE, WHERRY, CALLS, OBSTORE, S5CMD, AWSCRT, RCLONE, AWSCLI, S3FS, BOTO3)
GCS = (
    SOCKETS,
    Row("wherry", "ours", "wherry-gcs", is_ours=True),
    Row("obstore", "google", "obstore-gcs"),
    Row("transfer manager", "google", "transfer-manager"),
    Row("google-cloud-storage", "google", "google-cloud-storage"),
    Row("gcsfs", "google", "gcsfs"),
)
#: Not among those of a quick run.
SLOW = (RCLONE, AWSCLI, S3FS, TORCH)
FEW_LARGE = (SOCKETS, WHERRY, OBSTORE, S5CMD, BOTO3)
#: On a real server, which is what limits the speed.
FEW = (WHERRY, OBSTORE, S5CMD, BOTO3)


@dataclass(frozen=True)
class Goal:
    """What the row `of` is to reach: a ratio of medians in one table.

    `speed`: at least `limit` times the speed of `over`. `cpu`: at most `limit` times its processor time. `over` "any peer": the
    best of all that are neither wherry nor bare sockets.
    """

    figure: str
    over: str
    limit: float
    of: str = WHERRY.name


@dataclass(frozen=True)
class Table:
    """One table. `do`: up, down or many. `where`: sink, tls, gcs (the sink) or seaweedfs."""

    name: str
    title: str
    do: str
    where: str
    rows: Sequence[Row]
    size_bytes: int
    n_files: int = 1
    goals: Sequence[Goal] = field(default=())

    @property
    def heading(self) -> str:
        """The title, with the size of this one."""
        size = f"{self.size_bytes // 2**30} GiB" if self.size_bytes >= 2**30 else f"{self.size_bytes // MIB} MiB"
        return self.title.format(size=size, n=f"{self.n_files:,}")

    def quick(self) -> Table:
        """A smaller one of the same kind: 256 MiB, a fifth of the files, without the clients that take longest."""
        rows = [row for row in self.rows if row not in SLOW]
        return replace(self, rows=rows, size_bytes=min(self.size_bytes, 256 * MIB), n_files=max(1, self.n_files // 5))


ANY_PEER = "any peer"
_UP = (
    Goal("speed", SOCKETS.name, 0.75),
    Goal("cpu", SOCKETS.name, 1.2),
    Goal("speed", OBSTORE.name, 1.1),
    Goal("speed", BOTO3.name, 6),
)
_ALL = (
    Table(
        "up",
        "{size} up, plain HTTP",
        "up",
        "sink",
        (*LARGE[:2], BY_COPY, *LARGE[2:]),
        1024 * MIB,
        goals=_UP,
    ),
    Table("up-4g", "{size} up, plain HTTP", "up", "sink", FEW_LARGE, 4096 * MIB, goals=_UP),
    Table(
        "down",
        "{size} down, plain HTTP, into a new file in memory",
        "down",
        "sink",
        LARGE,
        1024 * MIB,
        goals=(
            Goal("speed", SOCKETS.name, 0.9),
            Goal("speed", OBSTORE.name, 1.1),
            Goal("speed", BOTO3.name, 1.7),
            Goal("cpu", OBSTORE.name, 1),
        ),
    ),
    Table(
        "tls-up",
        "{size} up over TLS",
        "up",
        "tls",
        LARGE,
        1024 * MIB,
        goals=(
            Goal("speed", SOCKETS.name, 0.9),
            Goal("cpu", ANY_PEER, 1),
            Goal("speed", OBSTORE.name, 1),
            Goal("speed", BOTO3.name, 2),
        ),
    ),
    Table(
        "tls-down",
        "{size} down over TLS, into a new file in memory",
        "down",
        "tls",
        LARGE,
        1024 * MIB,
        goals=(Goal("speed", ANY_PEER, 1), Goal("cpu", ANY_PEER, 1)),
    ),
    Table(
        "small",
        "{n} files of 16 KiB up, plain HTTP",
        "many",
        "sink",
        SMALL,
        16 * 1024,
        5000,
        goals=(
            Goal("speed", OBSTORE.name, 1.5, of=STORE.name),
            Goal("speed", S5CMD.name, 1.3),
            Goal("speed", BOTO3.name, 12),
        ),
    ),
    Table(
        "mib",
        "{n} files of 1 MiB up, plain HTTP",
        "many",
        "sink",
        SMALL,
        MIB,
        300,
        goals=(Goal("speed", S5CMD.name, 1.5), Goal("speed", RCLONE.name, 1.5), Goal("speed", BOTO3.name, 5)),
    ),
    Table(
        "gcs-up",
        "{size} up to GCS's API",
        "up",
        "gcs",
        GCS,
        1024 * MIB,
        goals=(Goal("speed", SOCKETS.name, 0.55), Goal("speed", "transfer manager", 1.7)),
    ),
    Table(
        "gcs-down",
        "{size} down by GCS's API, into a new file in memory",
        "down",
        "gcs",
        GCS,
        1024 * MIB,
        goals=(Goal("speed", SOCKETS.name, 0.9),),
    ),
    Table("up-real", "{size} up to SeaweedFS", "up", "seaweedfs", FEW, 256 * MIB),
    Table("down-real", "{size} down from SeaweedFS", "down", "seaweedfs", FEW, 256 * MIB),
    Table("small-real", "{n} files of 16 KiB to SeaweedFS", "many", "seaweedfs", FEW, 16 * 1024, 1000),
)
TABLES = {table.name: table for table in _ALL}
#: What a quick run has, where no table is named.
QUICK = ("up", "down", "small", "mib", "tls-up", "tls-down", "gcs-up", "gcs-down", "enqueue", "startup", "training")
