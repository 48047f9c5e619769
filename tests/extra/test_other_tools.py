"""wherry beside aws, s5cmd and rclone on one S3 server: the same input, compared results. docs/comparison.md has the table."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from gate import wait_until
from servers.features import tell_spool
from servers.real import S3Server
from support import end_agent

pytestmark = pytest.mark.extra
ROOT = Path(__file__).parent.parent.parent
TOOLS = Path(os.environ.get("WHERRY_TOOLS", ROOT / ".tools")) / "bin"
#: Names with what shells, URLs and patterns make something of.
FILES = {
    "run1/a.pt": 3000,
    "run1/b.pt": 10,
    "run1/old.tmp": 7,
    "run1/deep/c.pt": 500_000,
    "run1/deep/old.tmp": 0,
    "run1/deep/er/with space+plus.txt": 12,
    "run1/é%20&'.txt": 5,
    "run10/d.pt": 40,
}


@dataclass(frozen=True)
class Bench:
    """A server with FILES below a prefix, and a folder to work in."""

    folder: Path
    bucket: str
    prefix: str
    environment: Mapping[str, str]

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def run(self, *command: str, stdin: bytes = b"", code: int | None = 0) -> bytes:
        """Run wherry or another tool: what it writes to stdout."""
        program, *rest = command
        words = [sys.executable, "-m", "wherry.cli"] if program == "wherry" else [str(TOOLS / program)]
        done = subprocess.run(
            [*words, *rest], cwd=self.folder, env=self.environment, input=stdin, capture_output=True, timeout=100, check=False
        )
        assert code is None or done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout if code is not None else str(done.returncode).encode()

    def names(self, prefix: str) -> set[str]:
        """What is below a prefix, as rclone lists it."""
        return set(self.run("rclone", "lsf", "-R", "--files-only", f"peer:{self.bucket}/{prefix}").decode().splitlines())

    def copy(self) -> str:
        """A prefix of its own with the same objects."""
        prefix = uuid.uuid4().hex
        self.run("rclone", "copy", f"peer:{self.bucket}/{self.prefix}", f"peer:{self.bucket}/{prefix}")
        return prefix


@pytest.fixture(scope="module")
def bench(seaweedfs_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("tools")
    for name, size_bytes in FILES.items():
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_bytes(os.urandom(size_bytes))
    bucket, prefix = f"tools-{uuid.uuid4().hex[:12]}", "exp"
    seaweedfs_server.make_bucket(bucket)
    environment = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ},
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "WHERRY_SPOOL": str(folder / "spool"),
        "TMPDIR": str(folder),
        "AWS_ACCESS_KEY_ID": seaweedfs_server.access_key,
        "AWS_SECRET_ACCESS_KEY": seaweedfs_server.secret_key,
        "AWS_ENDPOINT_URL": seaweedfs_server.url,
        "S3_ENDPOINT_URL": seaweedfs_server.url,
        "AWS_REGION": "us-east-1",
        "RCLONE_CONFIG_PEER_TYPE": "s3",
        "RCLONE_CONFIG_PEER_PROVIDER": "SeaweedFS",
        "RCLONE_CONFIG_PEER_ENV_AUTH": "true",
        "RCLONE_CONFIG_PEER_ENDPOINT": seaweedfs_server.url,
        "RCLONE_CONFIG": str(folder / "rclone.conf"),
    }
    (folder / "rclone.conf").touch()
    tell_spool(folder / "spool", seaweedfs_server)
    bench = Bench(folder, bucket, prefix, environment)
    bench.run("aws", "s3", "cp", "--quiet", "--recursive", "in", bench.uri)
    with end_agent(folder / "spool"):
        yield bench


def tree(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(out: bytes) -> list[dict[str, object]]:
    return [json.loads(text) for text in out.splitlines()]


def test_the_page_names_the_versions_that_run_here(bench: Bench) -> None:
    said = {
        "aws": bench.run("aws", "--version").decode().split()[0].partition("/")[2],
        "s5cmd": bench.run("s5cmd", "version").decode().partition("-")[0].strip().lstrip("v"),
        "rclone": bench.run("rclone", "version").decode().split()[1].lstrip("v"),
    }
    head = next(text for text in (ROOT / "docs/comparison.md").read_text().splitlines() if text.startswith("| feature |"))
    assert said == dict(re.findall(r"(aws|s5cmd|rclone) ([0-9][0-9.]*)", head))


def test_a_level_has_the_same_objects_and_folders(bench: Bench) -> None:
    out = rows(bench.run("wherry", "ls", f"{bench.uri}/run1/", "--json"))
    ours = {str(row["name"]): row["size_bytes"] for row in out[:-1]}
    aws = bench.run("aws", "s3", "ls", f"{bench.uri}/run1/").decode().splitlines()
    theirs = dict(
        (row.split("PRE ")[1], None) if " PRE " in row else (row[31:], int(row.split()[2])) for row in aws
    )  # date, time, 11 columns of size
    assert theirs == ours
    rclone = bench.run("rclone", "lsf", "--format", "ps", f"peer:{bench.bucket}/{bench.prefix}/run1").decode().splitlines()
    pairs = (row.rsplit(";", 1) for row in rclone)
    assert {name: None if name.endswith("/") else int(size) for name, size in pairs} == ours
    s5cmd = rows(bench.run("s5cmd", "--json", "ls", f"{bench.uri}/run1/"))
    assert {str(row["key"]).removeprefix(f"{bench.uri}/run1/") for row in s5cmd} == set(ours)
    assert {"objects": 4, "folders": 1, "bytes": 3022, "buckets": 0} == out[-1]["summary"]


def test_all_below_is_the_same(bench: Bench) -> None:
    out = rows(bench.run("wherry", "ls", "-r", f"{bench.uri}/", "--json"))
    ours = {str(row["name"]): row["size_bytes"] for row in out[:-1]}
    assert FILES == ours
    assert set(FILES) == bench.names(bench.prefix)
    aws = bench.run("aws", "s3", "ls", "--recursive", "--summarize", f"{bench.uri}/").decode()
    assert set(FILES) == {row[31:].removeprefix(f"{bench.prefix}/") for row in aws.splitlines() if bench.prefix in row}
    s5cmd = rows(bench.run("s5cmd", "--json", "ls", f"{bench.uri}/*"))
    # s5cmd says no size of an empty object
    assert FILES == {str(row["key"]).removeprefix(f"{bench.uri}/"): row.get("size", 0) for row in s5cmd}


def test_buckets_are_the_same(bench: Bench) -> None:
    ours = {str(row["name"]) for row in rows(bench.run("wherry", "ls", "s3://", "--json"))[:-1]}
    assert {row.split()[-1] for row in bench.run("aws", "s3", "ls").decode().splitlines()} == ours
    assert {row.split()[-1].removeprefix("s3://") for row in bench.run("s5cmd", "ls").decode().splitlines()} == ours
    assert {row.split()[-1] for row in bench.run("rclone", "lsd", "peer:").decode().splitlines()} == ours


def test_totals_are_the_same(bench: Bench) -> None:
    summary = rows(bench.run("wherry", "du", bench.uri, "--json"))[-1]["summary"]
    assert {"objects": len(FILES), "bytes": sum(FILES.values()), "incomplete_uploads": 0} == summary
    rclone = json.loads(bench.run("rclone", "size", "--json", f"peer:{bench.bucket}/{bench.prefix}"))
    assert (rclone["count"], rclone["bytes"]) == (len(FILES), sum(FILES.values()))
    s5cmd = json.loads(bench.run("s5cmd", "--json", "du", f"{bench.uri}/*"))
    assert (s5cmd["count"], s5cmd["size"]) == (len(FILES), sum(FILES.values()))
    aws = bench.run("aws", "s3", "ls", "--recursive", "--summarize", bench.uri).decode()
    assert re.search(rf"Total Objects: {len(FILES)}\s+Total Size: {sum(FILES.values())}", aws)


def test_a_prefix_arrives_the_same(bench: Bench) -> None:
    bench.run("wherry", "get", "-r", f"{bench.uri}/", "got-wherry/")
    bench.run("aws", "s3", "cp", "--quiet", "--recursive", bench.uri, "got-aws")
    bench.run("s5cmd", "cp", f"{bench.uri}/*", "got-s5cmd/")
    bench.run("rclone", "copy", f"peer:{bench.bucket}/{bench.prefix}", "got-rclone")
    assert tree(bench.folder / "in") == tree(bench.folder / "got-wherry")
    for tool in ("aws", "rclone", "s5cmd"):
        assert tree(bench.folder / "in") == tree(bench.folder / f"got-{tool}"), tool


def test_patterns_take_the_same(bench: Bench) -> None:
    """One star of s5cmd goes over slashes, as our two do; aws and rclone filter what is below a prefix, as our rules do."""
    expected = {name for name in FILES if name.endswith(".pt")}
    bench.run("wherry", "get", f"{bench.uri}/**/*.pt", "pattern-wherry/")
    bench.run("wherry", "get", "-r", f"{bench.uri}/", "pattern-rules/", "--include", "*.pt")
    bench.run("s5cmd", "cp", f"{bench.uri}/*.pt", "pattern-s5cmd/")
    bench.run("aws", "s3", "cp", "--quiet", "--recursive", "--exclude", "*", "--include", "*.pt", bench.uri, "pattern-aws")
    bench.run("rclone", "copy", "--include", "*.pt", f"peer:{bench.bucket}/{bench.prefix}", "pattern-rclone")
    for tool in ("wherry", "rules", "s5cmd", "aws", "rclone"):
        assert expected == set(tree(bench.folder / f"pattern-{tool}")), tool


def test_stdin_and_stdout_carry_the_same(bench: Bench) -> None:
    data = os.urandom(9_000_000)
    bench.run("wherry", "put", "-", f"{bench.uri}-piped/wherry", stdin=data)
    bench.run("aws", "s3", "cp", "--quiet", "-", f"{bench.uri}-piped/aws", stdin=data)
    bench.run("s5cmd", "pipe", f"{bench.uri}-piped/s5cmd", stdin=data)
    bench.run("rclone", "rcat", f"peer:{bench.bucket}/{bench.prefix}-piped/rclone", stdin=data)
    for tool in ("wherry", "aws", "s5cmd", "rclone"):
        assert data == bench.run("wherry", "get", f"{bench.uri}-piped/{tool}", "-"), tool
    assert data == bench.run("aws", "s3", "cp", "--quiet", f"{bench.uri}-piped/wherry", "-")
    assert data == bench.run("s5cmd", "cat", f"{bench.uri}-piped/wherry")
    assert data == bench.run("rclone", "cat", f"peer:{bench.bucket}/{bench.prefix}-piped/wherry")


DELETIONS: dict[str, Callable[[Bench, str], tuple[str, ...]]] = {
    "wherry": lambda bench, prefix: ("wherry", "rm", "-r", "-y", f"s3://{bench.bucket}/{prefix}/", "--include", "*.tmp"),
    "aws": lambda bench, prefix: (
        *("aws", "s3", "rm", "--quiet", "--recursive", f"s3://{bench.bucket}/{prefix}"),
        *("--exclude", "*", "--include", "*.tmp"),
    ),
    "s5cmd": lambda bench, prefix: ("s5cmd", "rm", f"s3://{bench.bucket}/{prefix}/*.tmp"),
    "rclone": lambda bench, prefix: ("rclone", "delete", "--include", "*.tmp", f"peer:{bench.bucket}/{prefix}"),
}


@pytest.mark.parametrize("tool", sorted(DELETIONS))
def test_deletions_leave_the_same(bench: Bench, tool: str) -> None:
    prefix = bench.copy()
    bench.run(*DELETIONS[tool](bench, prefix))
    assert {name for name in FILES if not name.endswith(".tmp")} == bench.names(prefix)


#: What is missing -> the exit codes of the tools. Of aws and rclone, some say nothing at all.
MISSING: dict[str, dict[str, int]] = {
    "list a prefix": {"wherry": 3, "aws": 1, "s5cmd": 1, "rclone": 0},
    "get an object": {"wherry": 3, "aws": 1, "s5cmd": 1, "rclone": 0},
    "get a prefix": {"wherry": 3, "aws": 0, "s5cmd": 1, "rclone": 0},
    "get a pattern": {"wherry": 3, "aws": 0, "s5cmd": 1, "rclone": 0},
    "list a bucket": {"wherry": 3, "aws": 255, "s5cmd": 1, "rclone": 3},
    "delete an object": {"wherry": 3, "aws": 0, "s5cmd": 0, "rclone": 4},
}


@pytest.mark.parametrize("what", sorted(MISSING))
def test_what_is_missing_is_told_by_exit_codes(bench: Bench, what: str) -> None:
    uri, peer = f"{bench.uri}/none", f"peer:{bench.bucket}/{bench.prefix}/none"
    commands: dict[str, dict[str, tuple[str, ...]]] = {
        "list a prefix": {
            "wherry": ("ls", f"{uri}/"),
            "aws": ("s3", "ls", f"{uri}/"),
            "s5cmd": ("ls", f"{uri}/"),
            "rclone": ("lsf", peer),
        },
        "get an object": {
            "wherry": ("get", uri, "missing"),
            "aws": ("s3", "cp", uri, "missing"),
            "s5cmd": ("cp", uri, "missing"),
            "rclone": ("copyto", peer, "missing"),
        },
        "get a prefix": {
            "wherry": ("get", "-r", f"{uri}/", "missing/"),
            "aws": ("s3", "cp", "--recursive", f"{uri}/", "missing/"),
            "s5cmd": ("cp", f"{uri}/*", "missing/"),
            "rclone": ("copy", peer, "missing/"),
        },
        "get a pattern": {
            "wherry": ("get", f"{bench.uri}/*.none", "missing/"),
            "aws": ("s3", "cp", "--recursive", "--exclude", "*", "--include", "*.none", bench.uri, "missing/"),
            "s5cmd": ("cp", f"{bench.uri}/*.none", "missing/"),
            "rclone": ("copy", "--include", "*.none", f"peer:{bench.bucket}/{bench.prefix}", "missing/"),
        },
        "list a bucket": {
            "wherry": ("ls", "s3://no-such-bucket"),
            "aws": ("s3", "ls", "s3://no-such-bucket"),
            "s5cmd": ("ls", "s3://no-such-bucket"),
            "rclone": ("lsf", "peer:no-such-bucket"),
        },
        "delete an object": {
            "wherry": ("rm", uri),
            "aws": ("s3", "rm", uri),
            "s5cmd": ("rm", uri),
            "rclone": ("deletefile", peer),
        },
    }
    codes = {tool: int(bench.run(tool, *words, code=None)) for tool, words in commands[what].items()}
    assert MISSING[what] == codes


#: What a tool does with (source, destination), each a folder or a prefix: how -> tool -> words before and after the two.
COPIES: dict[str, dict[str, Callable[[str, str], tuple[str, ...]]]] = {
    "cp": {
        "wherry": lambda one, other: ("cp", "-r", f"{one}/", f"{other}/"),
        "aws": lambda one, other: ("s3", "cp", "--quiet", "--recursive", one, other),
        "s5cmd": lambda one, other: ("cp", f"{one}/*" if "://" in one else f"{one}/", f"{other}/"),
        "rclone": lambda one, other: ("copy", one, other),
    },
    "mv": {
        "wherry": lambda one, other: ("mv", "-r", f"{one}/", f"{other}/"),
        "aws": lambda one, other: ("s3", "mv", "--quiet", "--recursive", one, other),
        "s5cmd": lambda one, other: ("mv", f"{one}/*" if "://" in one else f"{one}/", f"{other}/"),
        "rclone": lambda one, other: ("move", one, other),
    },
    "sync": {
        "wherry": lambda one, other: ("sync", one, other),
        "aws": lambda one, other: ("s3", "sync", "--quiet", one, other),
        "s5cmd": lambda one, other: ("sync", f"{one}/*" if "://" in one else f"{one}/", f"{other}/"),
        "rclone": lambda one, other: ("copy", one, other),  # whose sync always deletes
    },
    "sync --delete": {
        "wherry": lambda one, other: ("sync", one, other, "--delete", "--yes"),
        "aws": lambda one, other: ("s3", "sync", "--quiet", "--delete", one, other),
        "s5cmd": lambda one, other: ("sync", "--delete", f"{one}/*" if "://" in one else f"{one}/", f"{other}/"),
        "rclone": lambda one, other: ("sync", one, other),
    },
}
#: s5cmd asks the server to copy objects of other names: it does not escape these.
ESCAPED = ("run1/é%20&'.txt", "run1/deep/er/with space+plus.txt")
TOOLS_BESIDE = ("wherry", "aws", "s5cmd", "rclone")


def copied(bench: Bench, how: str, tool: str, one: str, other: str) -> None:
    """Have a tool do it. A place is a folder, or a prefix that ``s3:`` stands before."""

    def place(text: str) -> str:
        prefix = text.removeprefix("s3:")
        if prefix == text:
            return text
        return f"peer:{bench.bucket}/{prefix}" if tool == "rclone" else f"s3://{bench.bucket}/{prefix}"

    bench.run(tool, *COPIES[how][tool](place(one), place(other)))


def content(bench: Bench, place: str) -> dict[str, bytes]:
    """The files of a place."""
    if not place.startswith("s3:"):
        return tree(bench.folder / place)
    got = uuid.uuid4().hex
    bench.run("rclone", "copy", f"peer:{bench.bucket}/{place.removeprefix('s3:')}", got)
    return tree(bench.folder / got)


@pytest.mark.parametrize("tool", TOOLS_BESIDE)
@pytest.mark.parametrize("how", ["cp", "mv", "sync"])
def test_copies_and_moves_give_the_same(bench: Bench, how: str, tool: str) -> None:
    """Up, inside the store, and down; what was moved is gone, what was copied is not."""
    start, expected = f"from-{uuid.uuid4().hex}", tree(bench.folder / "in")
    shutil.copytree(bench.folder / "in", bench.folder / start)
    if tool == "s5cmd":
        for name in ESCAPED:
            expected.pop(name)
            (bench.folder / start / name).unlink()
    places = [start, f"s3:{uuid.uuid4().hex}", f"s3:{uuid.uuid4().hex}", f"to-{uuid.uuid4().hex}"]
    for one, other in pairwise(places):
        copied(bench, how, tool, one, other)
        assert expected == content(bench, other), (one, other)
        assert ({} if how == "mv" else expected) == content(bench, one), (one, other)


@pytest.mark.parametrize("tool", TOOLS_BESIDE)
@pytest.mark.parametrize("way", ["up", "inside", "down"])
def test_what_differs_becomes_the_same_and_the_rest_goes(bench: Bench, way: str, tool: str) -> None:
    """A file is new, one has another size, one is newer, one is extra: without and with deletion."""
    start = f"from-{uuid.uuid4().hex}"
    shutil.copytree(bench.folder / "in", bench.folder / start)
    one = start if way == "up" else f"s3:{bench.copy()}"
    other = f"to-{uuid.uuid4().hex}" if way == "down" else f"s3:{uuid.uuid4().hex}"
    if (way, tool) == ("inside", "s5cmd"):
        for name in ESCAPED:
            bench.run("rclone", "deletefile", f"peer:{bench.bucket}/{one[3:]}/{name}")
    copied(bench, "sync", tool, one, other)
    before = content(bench, other)
    later_s = int(time.time()) + 1
    wait_until(lambda: time.time() > later_s, what="the next second: services tell no less")
    changed = bench.folder / f"changed-{uuid.uuid4().hex}"
    for name, data in {"run1/a.pt": b"other size", "run1/b.pt": os.urandom(10), "new/file": b"new"}.items():
        (changed / name).parent.mkdir(parents=True, exist_ok=True)
        (changed / name).write_bytes(data)
        os.utime(changed / name, (time.time() + 60, time.time() + 60))  # newer than what services date by the second
    copied(bench, "cp", "rclone", changed.name, one)
    extra = bench.folder / f"extra-{uuid.uuid4().hex}"
    (extra / "more").mkdir(parents=True)
    (extra / "more/extra").write_bytes(b"extra")
    copied(bench, "cp", "rclone", extra.name, other)
    expected = content(bench, one)
    if (way, tool) == ("down", "aws"):  # which leaves a file that is older than its object, and as large
        expected["run1/b.pt"] = before["run1/b.pt"]
    copied(bench, "sync", tool, one, other)
    assert {**expected, "more/extra": b"extra"} == content(bench, other)
    copied(bench, "sync --delete", tool, one, other)
    assert expected == content(bench, other)


@pytest.mark.parametrize("tool", TOOLS_BESIDE)
def test_checksums_that_other_tools_stored_are_compared(bench: Bench, tool: str) -> None:
    """CRC32, CRC64 and MD5 as well as CRC32C; the local files are read, of objects only what states nothing."""
    place = f"s3:{uuid.uuid4().hex}"
    copied(bench, "cp", tool, "in", place)
    uri = f"s3://{bench.bucket}/{place[3:]}"
    plan = rows(bench.run("wherry", "sync", "in", uri, "--checksum", "--dry-run", "--json"))[0]["plan"]
    assert isinstance(plan, dict)
    assert {"files": len(FILES), "bytes": sum(FILES.values())} == plan["unchanged"]
    assert plan["read_bytes"] in (sum(FILES.values()), 2 * sum(FILES.values()))
    start = f"from-{uuid.uuid4().hex}"
    shutil.copytree(bench.folder / "in", bench.folder / start)
    (bench.folder / start / "run1/b.pt").write_bytes(b"0123456789")
    plan = rows(bench.run("wherry", "sync", start, uri, "--checksum", "--dry-run", "--json"))[0]["plan"]
    assert isinstance(plan, dict)
    assert {"files": 1, "bytes": 10} == plan["replace"]
