"""One client in a process of its own. Reads orders on stdin, one JSON object a line, and says what each took.

Standard library only, as it runs in the peers' environment as well as in wherry's. What a client prints goes to stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import traceback
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from clients.contract import Client, Endpoint, open_files_limit

PR_SET_CHILD_SUBREAPER = 36


def found_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def obey(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    path = Path(order["path"])
    if order["do"] == "prepare":
        return {"path": str(client.prepare(path))}
    if order["do"] == "settle":
        client.settle()
        return {}
    client.blocked_s = None
    started = time.perf_counter()
    if order["do"] == "up":
        client.up(path, order["key"])
    elif order["do"] == "down":
        client.down(order["key"], path, order["size_bytes"])
    else:
        client.many(path, order["key"])
    wall_s = time.perf_counter() - started
    return {"wall_s": wall_s, "blocked_s": wall_s if client.blocked_s is None else client.blocked_s}


def answer(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    try:
        return obey(client, order)
    except NotImplementedError:
        return {"error": "it cannot do that"}
    except Exception:
        return {"error": traceback.format_exc()}


def main() -> None:
    # Daemons of the client (wherry's agent) stay below this process, so their processor time is counted.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    open_files_limit()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, name, where = sys.argv[1:]

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        kind: type[Client] = import_module(f"clients.{module}").CLIENTS[name]
        os.environ.update(Endpoint(**json.loads(where)).environment)
        client = kind(Endpoint(**json.loads(where)))
    except BaseException:
        say({"error": traceback.format_exc()})
        return
    about = (kind.__doc__ or "").strip()
    say({"versions": {package: found_version(package) for package in kind.packages}, "about": about})
    for line in sys.stdin:
        say(answer(client, json.loads(line)))
    client.close()


if __name__ == "__main__":
    main()
