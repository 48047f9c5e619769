"""``--max-bytes-per-s``: one limit for all connections of a command, against a real server."""

from __future__ import annotations

import json
import os
import time

import pytest

from command_line import CommandLine
from servers.features import tell_spool
from servers.real import S3Server

MIB = 2**20
LIMIT = 8 * MIB
SIZES = {"big": 9 * MIB, "one": MIB, "two": MIB, "deep/three": MIB}


@pytest.fixture
def there(line: CommandLine, seaweedfs_server: S3Server) -> tuple[str, tuple[str, ...]]:
    """A prefix in a server, and the options that open it; the files of SIZES are in the folder `here`."""
    (line.folder / "options.json").write_text(json.dumps(seaweedfs_server.options))
    tell_spool(line.spool, seaweedfs_server)
    for name, size in SIZES.items():
        path = line.folder / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name[:1].encode() * size)  # a text, as `run` reads what cat writes
    uri = f"s3://{seaweedfs_server.bucket}/pace-{line.folder.name}-{os.getpid()}"
    return uri, ("--options-file", "options.json")


def seconds(line: CommandLine, *arguments: object) -> float:
    begun_s = time.monotonic()
    line.run(*arguments)
    return time.monotonic() - begun_s


def test_no_command_moves_bytes_faster_than_its_limit(line: CommandLine, there: tuple[str, tuple[str, ...]]) -> None:
    uri, options = there
    paced, least_s = ("--max-bytes-per-s", "8MiB", *options), sum(SIZES.values()) / LIMIT
    assert seconds(line, "put", "here", f"{uri}/", *paced) >= least_s
    assert seconds(line, "get", "-r", f"{uri}/here", "back/", *paced) >= least_s
    assert seconds(line, "cp", "-r", f"{uri}/here", "copied/", *paced) >= least_s
    assert seconds(line, "cat", f"{uri}/here/**", *paced) >= least_s
    for name in SIZES:
        for folder in ("back/here", "copied/here"):
            assert (line.folder / "here" / name).read_bytes() == (line.folder / folder / name).read_bytes()


def test_a_copy_inside_the_server_costs_nothing_of_the_limit(line: CommandLine, there: tuple[str, tuple[str, ...]]) -> None:
    uri, options = there
    line.run("put", "here/big", f"{uri}/big", *options)
    line.run("cp", f"{uri}/big", f"{uri}/copied", "--max-bytes-per-s", "64KiB", *options)  # else it takes minutes
    assert str(SIZES["big"]) in line.run("ls", f"{uri}/copied", "--json", *options)[0]


def test_put_with_a_limit_leaves_nothing_to_the_background(line: CommandLine, there: tuple[str, tuple[str, ...]]) -> None:
    uri, options = there
    paced = ("--max-bytes-per-s", "100MiB", *options)
    out, _ = line.run("put", "here/one", "here/two", f"{uri}/", *paced)
    assert out.startswith("uploaded: 2 files, 2.0 MiB in ")
    assert "" == line.run("status", "--json")[0].partition('"jobs": [')[2].partition("]")[0]
    line.run("put", "-", f"{uri}/piped", *paced, stdin="piped in")
    assert "piped in" == line.run("cat", f"{uri}/piped", *options)[0]
    for refused in ("--no-wait", "--move", "--timeout=5"):
        said = line.refuse("put", "here/one", f"{uri}/x", *paced, refused, expected=2)
        assert "leave out --move, --no-wait and --timeout" in said
    assert "there is an object of this name already" in line.refuse("put", "here/one", f"{uri}/", *paced, expected=4)
    line.run("put", "here/one", f"{uri}/", "--overwrite", *paced)


@pytest.mark.parametrize("given", ["0", "-1", "10 apples", "", "1023"])
@pytest.mark.parametrize("verb", ["put", "get", "cp"])
def test_what_is_no_limit_is_refused(line: CommandLine, verb: str, given: str) -> None:
    _, err = line.run(verb, "s3://bucket/a", "b", f"--max-bytes-per-s={given}", expected=2)
    assert f"Invalid value for '--max-bytes-per-s': {given!r} is " in err
    assert "write a" in err
