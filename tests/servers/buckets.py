"""A place of a test's own in a server, for the command line."""

from __future__ import annotations

import json
import os

from command_line import CommandLine
from servers.features import tell_spool
from servers.gcs_server import GCSServer
from servers.real import S3Server


def bucket_of(line: CommandLine, server: S3Server | GCSServer, url: str = "") -> tuple[str, tuple[str, ...]]:
    """A prefix of this test's own in a server, and the options that open it; `url` is the address of a proxy before it."""
    is_s3 = isinstance(server, S3Server)
    name = f"{'s3' if is_s3 else 'gs'}-options.json"
    (line.folder / name).write_text(json.dumps({**server.options, **({"endpoint_url": url} if url else {})}))
    if isinstance(server, S3Server):
        tell_spool(line.spool, server, url)
    return f"{'s3' if is_s3 else 'gs'}://{server.bucket}/{line.folder.name}-{os.getpid()}", ("--options-file", name)


def names_at(line: CommandLine, uri: str, *options: str) -> dict[str, int]:
    """What is below a prefix: name -> size."""
    *found, _ = [json.loads(text) for text in line.run("ls", "-r", f"{uri}/", "--json", *options)[0].splitlines()]
    return {one["name"]: one["size_bytes"] for one in found}
