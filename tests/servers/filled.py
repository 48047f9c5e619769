"""Stores with objects in them, for tests of verbs that list, get and remove."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from command_line import CommandLine
from servers.features import tell_spool
from servers.real import S3Server
from support import file_of


def filled(line: CommandLine, names: Sequence[str], server: S3Server | None) -> tuple[str, tuple[str, ...]]:
    """The URI of a store with objects of these names, and the options that open it; without a server a folder."""
    for n, name in enumerate(names):
        file_of(line.folder / "dest" / name, 1000 + n, seed=n)
    if server is None:
        return str(line.folder / "dest"), ()
    (line.folder / "options.json").write_text(json.dumps(server.options))
    tell_spool(line.spool, server)
    uri, options = f"s3://{server.bucket}/{line.folder.name}-{os.getpid()}", ("--options-file", "options.json")
    sources = sorted({f"dest/{name.split('/')[0]}" for name in names})
    line.run("put", *sources, f"{uri}/", "--overwrite", *options)
    return uri, options
