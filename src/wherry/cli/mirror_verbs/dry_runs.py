"""What ``wherry mirror`` and ``wherry pull`` would do: the answers of their --dry-run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.cli.arguments import print_err, print_note, tell
from wherry.cli.mirror_verbs.prefix_reader import reader_of
from wherry.errors import ConfigError, NotFoundError
from wherry.mirror.report import printable as shown_name
from wherry.quantities import size_text
from wherry.uri import StoreURI

if TYPE_CHECKING:
    from wherry.mirror.format.rules import Rule


def show_mirrored(folder: Path, target: StoreURI, writer: str, rules: tuple[Rule, ...], *, as_json: bool) -> None:
    """Say which files of the folder would be mirrored, and how; what no object can be called goes to stderr."""
    from wherry.mirror.format.rules import PathKinds, Rules
    from wherry.mirror.writer.scan import scan

    found = scan(folder)
    if found is None:
        print_note(f"{folder} is not there yet: nothing would be mirrored until it is")
        return
    kinds = PathKinds(Rules(rules), writer or "writer", target.prefix)
    for path, file in sorted(found.files.items()):
        if (kind := kinds.kind(path)) == "ignore":
            continue
        what = {"name": shown_name(path), "size_bytes": file.size, "kind": kind}
        tell("mirrored", what, f"{size_text(file.size):>10}  {kind:<7}  {shown_name(path)}", as_json=as_json, dry_run=True)
    for path, reason in sorted({**kinds.refused, **found.trouble}.items()):
        print_err(f"{shown_name(path)} is not mirrored: {reason}")


def show_pulled(uri: str, folder: Path, option: list[str] | None, options_file: str | None, *, as_json: bool) -> None:
    """Say which files would be pulled: those that are not in the folder, or have another size there."""
    from wherry.mirror.mirror_config import lie_in_one_another
    from wherry.mirror.reader.local_limits import file_name_problem

    with reader_of(uri, option, options_file) as (reader, target, _):
        if target.scheme == "file" and lie_in_one_another(folder.absolute(), Path("/", target.prefix)):
            raise ConfigError(f"the folder {folder} and the URI {target} lie in one another: choose places beside each other")
        look = reader.snapshot()
        if look.is_empty:
            raise NotFoundError("there is no object of this name or below it", operation="pull", uri=str(target))
        for path, file in sorted(look.files.items()):
            size_bytes = file.size_bytes
            if reason := file_name_problem(path):
                print_err(f"{shown_name(path)} is not pulled: {reason}")
            elif size_bytes is None or size_bytes != _size_at(folder / path):
                size = "?" if size_bytes is None else size_text(size_bytes)
                what = {"name": shown_name(path), "to": str(folder / path), "size_bytes": size_bytes}
                tell("pulled", what, f"{size:>10}  {shown_name(path)} -> {folder / path}", as_json=as_json, dry_run=True)


def _size_at(path: Path) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return None
