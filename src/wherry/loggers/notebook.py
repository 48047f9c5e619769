"""What a notebook shows of a logger."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger


def logger_html(logger: Logger, status: str) -> str:
    """A table of the run, how far it is, and where what is logged goes. Names are the user's, so they are escaped."""
    state, time = logger.state, logger.state.timestamp
    rows = [
        ("run", state.run_name or "(no name)"),
        ("rank", f"{state.rank} of {state.world_size}"),
        ("progress", f"{state.phase}, epoch {time.epoch}, batch {time.batch}"),
        ("status", status),
        *(("destination", repr(destination)) for destination in logger.destinations),
        *(("callback", repr(callback)) for callback in logger.callbacks),
    ]
    cells = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{cells}</table>"
