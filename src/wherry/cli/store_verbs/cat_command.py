"""``wherry cat``: objects to standard output."""

from __future__ import annotations

from wherry.cli.arguments import FileOption, MaxBytesOption, PairsOption, SpoolOption, pace_of, spool_folder
from wherry.cli.store_verbs.get_command import UrisArgument
from wherry.cli.store_verbs.patterns import Rules
from wherry.cli.store_verbs.selection import Stores
from wherry.cli.store_verbs.stdout import write_all


def cat(
    uris: UrisArgument,
    max_bytes_per_s: MaxBytesOption = None,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
) -> None:
    """Write objects to standard output, one after another, verified.

    Each is downloaded into a temporary file first ($TMPDIR): a program that
    reads the output gets nothing before all of it is known to be right. A file
    that is being mirrored is put together from its segments, as far as it goes.
    """
    with Stores(option, options_file, spool_folder(spool), pace_of(max_bytes_per_s)) as stores:
        write_all(stores, uris, Rules(), recursive=False, verb="cat")
