"""Puts lines of metrics into trackio's database by its own `bulk_log`: python fill_trackio.py LINES, with the viewers' Python."""

from __future__ import annotations

import json
import sys
from itertools import islice

from trackio.sqlite_storage import SQLiteStorage  # type: ignore[import-not-found]  # it is in the viewers' environment only

with open(sys.argv[1], "rb") as file:
    while lines := list(islice(file, 5000)):
        found = [json.loads(line) for line in lines]
        steps = [line.pop("step") for line in found]
        SQLiteStorage.bulk_log("bench", "run", found, steps=steps)
