"""docs/backends.md says what the backends say of themselves. ``python tests/test_backends_doc.py`` rewrites its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import pytest

from wherry.backends.fsspec.store import FsspecStore
from wherry.backends.fsspec.traits import TRAITS
from wherry.backends.gcs.store import GCSStore
from wherry.backends.local.store import LocalStore
from wherry.backends.s3.options import S3Options
from wherry.backends.s3.probe import Findings
from wherry.backends.s3.store import S3Store
from wherry.store import Capabilities, ObjectStore
from wherry.store.registry import BACKENDS, backend_for
from wherry.uri import StoreURI

PAGE = Path(__file__).parent.parent / "docs" / "backends.md"
#: What is larger is no limit.
_NO_LIMIT_BYTES = 2**60
_OF_PARTS = {"conditional_complete", "min_part_size_bytes", "max_part_size_bytes", "max_parts", "sequential_parts"}
_KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region": "us-east-1"}
_SERVER = {**_KEYS, "endpoint_url": "http://127.0.0.1:1"}


def _proven() -> ObjectStore:
    store = S3Store(StoreURI("s3", "bucket"), _SERVER)
    store.assume({field.name: True for field in fields(Findings)})
    return store


#: Column of the table: a store of that kind. None of them is ever asked for anything.
STORES: Mapping[str, Callable[[], ObjectStore]] = {
    "local folder": lambda: LocalStore(StoreURI("file", ""), {}),
    "Amazon S3": lambda: S3Store(StoreURI("s3", "bucket"), _KEYS),
    "S3 server, not tried yet": lambda: S3Store(StoreURI("s3", "bucket"), _SERVER),
    "S3 server that honours all": _proven,
    "GCS": lambda: GCSStore(StoreURI("gs", "bucket"), {"anonymous": True}),
    'GCS, `upload="session"`': lambda: GCSStore(StoreURI("gs", "bucket"), {"anonymous": True, "upload": "session"}),
    "`memory://`": lambda: FsspecStore(StoreURI("memory", "bucket"), {}),
}

#: Field of Capabilities: what it means to a user.
MEANINGS = {
    "conditional_put": "`overwrite=False`, whole objects: of two writers exactly one wins",
    "conditional_complete": "... and objects in parts",
    "multipart": "large objects go in parts, which resume and are shared by workers",
    "checks_crc32c": "the store compares the CRC32C; else what arrived is read back",
    "ranged_get": "ranges are fetched alone",
    "atomic_replace": "replacing shows no reader a mixture or a gap",
    "metadata": "token and checksum are kept with the object",
    "process_local": "seen by one process only",
    "min_part_size_bytes": "smallest part but the last",
    "max_part_size_bytes": "largest part",
    "max_parts": "most parts",
    "max_put_size_bytes": "largest object that does not go in parts",
    "sequential_parts": "one stream: a single worker sends it, in order",
    "deleted_at_once": "objects deleted by one request, as when a mirror takes its segments away",
    "min_joined_bytes": "objects become one inside the store, as when a mirror seals a file: least size of each but the last",
    "puts_at_once": "small objects that one thread puts at once, where others put one",
    "copies": "objects are copied inside the server, as `wherry cp` does it",
}


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; its first row is the header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]])


def shown(name: str, capabilities: Capabilities) -> str:
    """One cell."""
    value = getattr(capabilities, name)
    if name in _OF_PARTS and not capabilities.multipart:
        return "-"
    if value is None and name == "min_joined_bytes":
        return "no"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (name.endswith("_bytes") and value >= _NO_LIMIT_BYTES):
        return "no limit"
    return size_of(value) if name.endswith("_bytes") else f"{value:,}"


def size_of(n_bytes: int) -> str:
    """In the largest unit that divides it."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n_bytes % 2**power == 0:
            return f"{n_bytes >> power} {unit}"
    return f"{n_bytes} B"


def guarantees() -> str:
    """The table of Capabilities."""
    with ExitStack() as stack:
        found = [stack.enter_context(make()).capabilities for make in STORES.values()]
    rows = [
        [f"{MEANINGS[field.name]} (`{field.name}`)", *(shown(field.name, one) for one in found)] for field in fields(Capabilities)
    ]
    return table([["", *STORES], *rows])


def file_systems() -> str:
    """What fsspec's file systems differ in, one row for all that are alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for protocol, traits in sorted(TRAITS.items()):
        exclusive = "yes" if traits.creates or traits.rename_if_absent is not None else "no: looked up first"
        alike.setdefault((exclusive, "yes" if traits.atomic else "no: removed first"), []).append(f"`{protocol}`")
    rows = [[" ".join(names), *said] for said, names in sorted(alike.items(), reverse=True)]
    return table([["scheme", "`overwrite=False`: exactly one wins", "replacing shows no gap"], *rows])


def trials() -> str:
    """What a trial of an S3 server may find, and what is assumed before."""
    before = Findings()
    return table(
        [["found", "until it is"], *([f"`{f.name}`", "yes" if getattr(before, f.name) else "no"] for f in fields(Findings))]
    )


TABLES = {"capabilities": guarantees, "fsspec": file_systems, "trials": trials}


def rewritten(page: str) -> str:
    """The page with each table between its two marks as the classes say."""
    for name, make in TABLES.items():
        marks = rf"(<!-- {name}: python tests/test_backends_doc.py -->\n).*?(<!-- end -->)"
        page, n = re.subn(marks, lambda match, make=make: f"{match[1]}\n{make()}\n\n{match[2]}", page, flags=re.DOTALL)  # type: ignore[misc]
        assert n == 1, f"{PAGE.name} has {n} places for the table {name!r}"
    return page


def options_in(page: str, scheme: str) -> Iterator[tuple[str, str, str]]:
    """(name, default, where it is kept) of the rows of a scheme's table of options."""
    section = page.partition(f"### Options of `{scheme}://`\n")[2].partition("\n#")[0]
    yield from re.findall(r"^\| `(\w+)` \| (.*?) \| .* \| (\w+) \|$", section, re.MULTILINE)


def test_the_tables_are_those_of_the_classes() -> None:
    page = PAGE.read_text()
    assert rewritten(page) == page, "python tests/test_backends_doc.py rewrites them"


@pytest.mark.parametrize("scheme", BACKENDS)
def test_every_storage_option_is_documented_and_so_is_where_it_is_kept(scheme: str) -> None:
    entry = backend_for(scheme)
    expected = dict.fromkeys(entry.public_options, "journal") | dict.fromkeys(entry.secret_options or (), "memory")
    assert expected == {name: kept for name, _, kept in options_in(PAGE.read_text(), scheme)}


def test_the_defaults_of_the_options_of_s3_are_those_of_the_class() -> None:
    expected = {field.name: f"`{field.default!r}`" for field in fields(S3Options)}
    assert expected == {name: default for name, default, _ in options_in(PAGE.read_text(), "s3")}


def test_what_the_page_calls_a_test_is_one() -> None:
    tests = PAGE.parent.parent.joinpath("tests")
    suite = (PAGE.parent.parent / "src" / "wherry" / "testing" / "conformance").glob("*.py")
    there = {name for path in [*suite, *tests.rglob("*.py")] for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert [] == [name for name in re.findall(r"`(test_\w+)`", PAGE.read_text()) if name not in there]


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
