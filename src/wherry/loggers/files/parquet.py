"""JSON Lines as Parquet, a column a key, at the end of a run. Incomplete Parquet files are unreadable, so they never grow."""

from __future__ import annotations

# pyarrow imports pandas when it writes, and pandas this module, which cannot be imported any more at the exit of the program.
import concurrent.futures.thread  # noqa: F401
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

#: So many rows are in memory at a time, and in a row group.
_ROWS = 50_000
#: How `format_json` writes the numbers that JSON lacks.
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
#: Says in the footer that each page has a CRC32, which pyarrow compares when it is asked to.
PAGE_SUMS = {b"wherry.page_checksums": b"crc32"}
_INT64 = range(-(2**63), 2**63)


def write_parquet(source: Path, destination: Path) -> int:
    """Write the records of the JSON Lines file `source` to `destination`. Return their number; for 0 no file is made.

    Columns have the order in which their keys appear. A column has booleans, whole numbers, floats (also if some are whole, or
    strings for NaN and infinities) or, in all other cases, texts: objects that are no text are written as JSON. Lines that are no
    JSON object are skipped. Each page has a CRC32. The file is read twice; the rows of one group are in memory at a time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = _kinds(source)
    if not kinds:
        return 0
    types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string(), "none": pa.null()}
    schema = pa.schema([(_utf8(key), types[kind]) for key, kind in kinds.items()], metadata=PAGE_SUMS)
    n_rows = 0
    with pq.ParquetWriter(destination, schema, compression="zstd", write_page_checksum=True) as writer:
        records = _records(source)
        while rows := list(islice(records, _ROWS)):
            cells = ([_cell(row.get(key), kind) for row in rows] for key, kind in kinds.items())
            columns = [pa.array(column, type_) for column, type_ in zip(cells, schema.types, strict=True)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            n_rows += len(rows)
    return n_rows


def _records(source: Path) -> Iterator[dict[str, object]]:
    with open(source, "rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # a part of a line, from a process that was killed
                continue
            if isinstance(record, dict):
                yield record


def _kinds(source: Path) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for record in _records(source):
        for key, value in record.items():
            known = kinds.get(key, "none")
            if known != "text":
                kinds[key] = _joined(known, _kind(value))
    return kinds


def _kind(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if value in _INT64 else "float"
    return "float" if isinstance(value, float) or (isinstance(value, str) and value in _NUMBERS) else "text"


def _joined(one: str, other: str) -> str:
    """The kind of a column that holds both."""
    if one == other or other == "none":
        return one
    if one == "none":
        return other
    return "text" if "text" in (one, other) else "float"


def _cell(value: object, kind: str) -> object:
    if value is None or kind in ("bool", "int", "none"):
        return value
    if kind == "float":
        return _float(value)
    return _utf8(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _utf8(text: str) -> str:
    """Without halves of surrogate pairs, which JSON has and Parquet has not."""
    return text.encode(errors="replace").decode()


def _float(value: Any) -> float:
    if isinstance(value, str):
        return _NUMBERS[value]
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
