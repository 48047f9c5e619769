"""uPlot draws the curves. Git has its name, version and hash only: `make ui-assets` fetches it, and wheels hold it."""

from __future__ import annotations

from pathlib import Path

#: Where `make ui-assets` puts the files that `uplot.json` names.
FOLDER = Path(__file__).parent / "uplot"
MISSING = "The curves cannot be drawn: uPlot is not in this checkout. Run `make ui-assets` there (it needs npm), and reload."


def is_there(folder: Path = FOLDER) -> bool:
    """Whether the curves can be drawn."""
    return (folder / "uPlot.iife.min.js").is_file() and (folder / "uPlot.min.css").is_file()
