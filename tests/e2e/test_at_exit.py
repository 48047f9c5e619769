"""Work that comes when the interpreter ends: a pool of Python's takes none then, and from 3.12 on no thread can be started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wherry
from servers.features import tell_spool
from servers.real import S3Server
from support import CALLER, file_of, run_script

MIB = 2**20

#: What a program may do in a function of atexit. Each needs several threads by its default.
CALLS = {
    "a download in ranges": "uploader().get('large', tmp / 'found')",
    "an upload in parts": "uploader(agent=AgentConfig(run_in='caller')).put(tmp / 'large', 'again')",
    "an upload around a full spool": "uploader(spool=FULL).put(tmp / 'large', 'again')",
    "a deletion of a folder by fsspec": "file_system().rm(uri + '/folder', recursive=True)",
    "a pull": "wherry.pull(uri + '/logs', tmp / 'pulled', storage_options=options)",
}

SCRIPT = """
import atexit, json, sys, fsspec, wherry
from pathlib import Path
from wherry.config import AgentConfig, Config, SpoolConfig, TransferConfig

tmp, uri, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
FULL = SpoolConfig(max_spool_bytes=0, when_full="direct")
transfer = TransferConfig(multipart_threshold_bytes=2**20, range_size_bytes=2**20)

def uploader(**config):
    return wherry.Uploader(uri, storage_options=options, spool=tmp / "spool", config=Config(transfer=transfer, **config))

def file_system():
    return fsspec.filesystem("wherry", target_protocol="s3", target_options=options, spool=tmp / "spool")

@atexit.register
def work():
    {call}
    print("done")
"""


@pytest.mark.parametrize("call", CALLS)
def test_what_is_called_when_the_interpreter_ends_is_done(tmp_path: Path, seaweedfs_server: S3Server, call: str) -> None:
    uri = f"s3://{seaweedfs_server.bucket}/at-exit/{call.replace(' ', '-')}"
    large = file_of(tmp_path / "large", 17 * MIB)
    file_of(tmp_path / "folder" / "a", 10)
    file_of(tmp_path / "folder" / "b", 10)
    options = seaweedfs_server.options
    tell_spool(tmp_path / "spool", seaweedfs_server)
    with wherry.Uploader(uri, storage_options=options, spool=tmp_path / "spool", config=CALLER) as uploader:
        uploader.put(large, "large")
        uploader.put(tmp_path / "folder", "folder")
    with wherry.Mirror(tmp_path / "folder", f"{uri}/logs", storage_options=options, spool=tmp_path / "spool"):
        pass
    said = run_script(SCRIPT.format(call=CALLS[call]), tmp_path, uri, json.dumps(options))
    assert "done\n" == said
