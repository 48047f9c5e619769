"""`wherry.ui`: the page in a notebook."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.display import IFrame

    from wherry.web.server import Server

_servers: dict[tuple[tuple[str, ...], str], Server] = {}


def ui(*uris: str | os.PathLike[str], height: int = 720, storage_options: Mapping[str, object] | None = None) -> IFrame:
    """Show the runs below `uris` inside a notebook: the page of `wherry ui`, answered by a thread of this process.

    The thread lives as long as the process. The same URIs get the same page again. The notebook's browser must be on this machine
    (or reach the port by a tunnel), as the page listens on 127.0.0.1 only. Raises MissingExtraError without the extra `ui`, and
    ImportError outside of notebooks, where IPython is not installed.
    """
    from IPython.display import IFrame

    from wherry.web.server import Server

    named = tuple(os.fspath(uri) for uri in uris) or (".",)
    key = (named, repr(sorted((storage_options or {}).items())))
    if key not in _servers:
        server = Server(named, in_frames=True, options=storage_options)
        server.start()
        atexit.register(server.stop)
        _servers[key] = server
    return IFrame(_servers[key].address.url, "100%", height)
