"""The commands about a store: put, get, ls, cat, rm."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import (
    FileOption,
    JsonOption,
    OverwriteOption,
    PairsOption,
    SpoolOption,
    TimeoutOption,
    UriArgument,
    YesOption,
    confirm,
    destinations,
    error_text,
    is_folder_like,
    parse_target,
    print_err,
    print_out,
    reader,
    split_target,
    spool_folder,
    storage_options,
)
from wherry.cli.exit_codes import Exit, exit_for
from wherry.errors import AlreadyExistsError, BucketNotFoundError, ConfigError, NotFoundError, UploadFailed, upload_failed

if TYPE_CHECKING:
    from wherry.spool.handle import UploadHandle
    from wherry.store import ObjectMeta
    from wherry.uploader import Uploader
    from wherry.uri import StoreURI

_DELETES_AT_ONCE = 8


def put(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files or folders.", show_default=False)],
    uri: UriArgument,
    overwrite: OverwriteOption = False,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Accepted, but not needed: folders are uploaded anyway.")
    ] = False,
    move: Annotated[bool, typer.Option("--move", help="Move the files into the spool: they are gone from PATH.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all is uploaded and verified.")] = True,
    timeout: TimeoutOption = None,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload files or folders.

    A URI that ends in / (or is a local folder) gets the name of each PATH
    appended; several PATHs need such a URI. What is uploaded is what a file
    holds now. Ctrl-C while waiting leaves the rest to the background.
    Without --overwrite a name that is taken is refused, and nothing is done.

    Example: wherry put model.pt logs s3://my-bucket/run1/
    """
    target, names = destinations(paths, uri)
    for path in paths:
        path.stat()  # nothing is accepted when one of them is missing
    options = storage_options(target.scheme, option, options_file)
    raise typer.Exit(
        put_files(
            paths,
            target,
            names,
            options,
            overwrite=overwrite,
            move=move,
            wait=wait,
            timeout=timeout,
            spool=spool,
            as_json=as_json,
        )
    )


def put_files(
    paths: Sequence[Path],
    target: StoreURI,
    names: Sequence[str],
    options: Mapping[str, object],
    *,
    overwrite: bool,
    move: bool = False,
    wait: bool = True,
    timeout: float | None = None,
    spool: Path | None = None,
    as_json: bool = False,
) -> Exit:
    """Upload each of the paths to its name below the target, as `wherry put` does, and say so. Returns the exit code."""
    from wherry.cli.taken_names import refuse_taken
    from wherry.uploader import Uploader

    if not overwrite:
        refuse_taken(target, options, list(zip(paths, names, strict=True)))
    uploader = Uploader(str(target), storage_options=options, spool=spool_folder(spool))
    code = Exit.OK
    with _left_to_the_background(uploader):
        handles = [
            uploader.put(path, name, overwrite=overwrite, move=move, progress_bar=True)
            for path, name in zip(paths, names, strict=True)
        ]
        if wait:
            try:
                uploader.flush(timeout, progress_bar=True)
            except UploadFailed as error:
                print_err(error_text(error if move else _without_remedy(error)))
                code = exit_for(error)
        for handle in handles:
            _show_upload(handle, uploader, as_json=as_json)
        if wait and not move:
            _give_up_taken(uploader, handles)
    return code


def _without_remedy(error: UploadFailed) -> UploadFailed:
    """The error with another remedy if all names were taken: the files are still at their PATH, and the spool keeps nothing."""
    if isinstance(error, AlreadyExistsError):
        return upload_failed(error.failures, remedy="give --overwrite to replace what is there, or other names")
    return error


def _give_up_taken(uploader: Uploader, handles: Sequence[UploadHandle]) -> None:
    """Free the spool of uploads whose name another writer took first: the files are still at their PATH."""
    from wherry.spool.journal.jobs import JobState

    jobs = uploader.journal.queries.jobs(ids=[job_id for handle in handles for job_id in handle.ids], states=[JobState.FAILED])
    taken = [job.id for job in jobs if job.error_kind == AlreadyExistsError.__name__]
    if taken:
        uploader.spool.free(uploader.journal.uploads.discard(taken)[1])


@contextmanager
def _left_to_the_background(uploader: Uploader) -> Iterator[None]:
    """Sign off in any case, without waiting; after Ctrl-C say how to wait for the rest."""
    try:
        yield
    except KeyboardInterrupt:
        counts = uploader.counts()
        n_left = counts.queued + counts.leased
        rest = f"{n_left} upload(s), {counts.bytes_queued} bytes, go on in the background. To wait: {uploader.drain_command()}"
        print_err(f"interrupted; {rest if n_left else 'nothing is left to upload'}")
        raise typer.Exit(Exit.INTERRUPTED) from None
    finally:
        try:
            uploader.close(0.0)
        except TimeoutError:
            pass  # this is what the background is for
        except UploadFailed as error:
            print_err(error_text(error))
            raise typer.Exit(exit_for(error)) from None


def _show_upload(handle: UploadHandle, uploader: Uploader, *, as_json: bool) -> None:
    from wherry.checksum import format_crc32c
    from wherry.cli.words import word
    from wherry.quantities import size_text

    jobs = uploader.journal.queries.jobs(ids=handle.ids)
    state, size_bytes = word(handle.state), sum(job.size_bytes for job in jobs)
    crc32c = jobs[0].crc32c if len(jobs) == 1 else None
    if as_json:
        shown = {
            "uri": handle.uri,
            "state": state,
            "size_bytes": size_bytes,
            "crc32c": None if crc32c is None else format_crc32c(crc32c),
            "jobs": handle.ids,
        }
        typer.echo(json.dumps(shown))
    elif state not in ("failed", "discarded"):
        print_out(f"{state:<9}  {size_text(size_bytes):>10}  {handle.uri}")


def get(
    uri: UriArgument,
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A file, or a folder to put it in.", show_default=False)],
    overwrite: OverwriteOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
) -> None:
    """Download one object, verified.

    The file appears whole or not at all. What is still queued for upload on
    this machine comes from the spool. A pointer (NAME.symlink) is followed.
    For folders: wherry pull URI DIR.

    Example: wherry get s3://my-bucket/run1/latest.pt .
    """
    if uri.endswith("/") or not parse_target(uri).prefix:
        raise _is_folder(uri)
    target, name = split_target(uri)
    if dest == "-":
        raise ConfigError("to write an object to standard output: wherry cat URI")
    path = Path(dest, name) if dest.endswith("/") or os.path.isdir(dest) else Path(dest)
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "exists already: give --overwrite or another name", str(path))
    options = storage_options(target.scheme, option, options_file)
    with reader(target, options, spool_folder(spool)) as uploader, _or_folder(uploader, name, _is_folder(uri)):
        uploader.get(name, path, overwrite=overwrite, progress_bar=True)


def _is_folder(uri: str) -> ConfigError:
    return ConfigError(f"{uri!r} is a folder, and get brings one object: for all below it, wherry pull {shlex.quote(uri)} DIR")


def ls(
    uri: UriArgument,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List objects: size, date, name.

    Everything at or below the URI is listed, names relative to it. What is
    still queued for upload on this machine is listed, too, and marked so.

    Example: wherry ls s3://my-bucket/run1/
    """
    from wherry.cli.words import word
    from wherry.mirror.format.layout import key_for, listing_problem
    from wherry.mirror.report import printable as shown_name
    from wherry.quantities import size_text, time_text

    target = parse_target(uri)
    folder, name = (target, "") if is_folder_like(uri) else split_target(uri)
    options = storage_options(target.scheme, option, options_file)
    n_shown = 0
    with reader(folder, options, spool_folder(spool)) as uploader:
        queued = {job.key: word(job.state) for job in uploader.view().queued_under(folder.prefix)}
        for meta in _at_or_below(uploader, name):
            n_shown += 1
            key = key_for(folder.prefix, meta.key)  # as it is: a listing may have names that we would not give
            state = queued.get(key, "stored")
            if as_json:
                shown = {
                    "uri": folder.uri_for(key),
                    "name": meta.key,
                    "size_bytes": meta.size_bytes,
                    "modified_s": meta.modified_s,
                    "state": state,
                }
                typer.echo(json.dumps(shown))
                continue
            mark = "" if state == "stored" else f"  ({state})"
            size = "?" if listing_problem(meta) else size_text(meta.size_bytes)
            print_out(f"{size:>10}  {time_text(meta.modified_s):25}  {shown_name(meta.key)}{mark}")
    if not n_shown and target.prefix:
        raise _nothing_at(target, "list")


def cat(uri: UriArgument, spool: SpoolOption = None, option: PairsOption = None, options_file: FileOption = None) -> None:
    """Write one object to standard output, verified.

    It is downloaded into a temporary file first ($TMPDIR): a program that
    reads the output gets nothing before all of it is known to be right. A file
    that is being mirrored is put together from its segments, as far as it goes.

    Example: wherry cat s3://my-bucket/run1/metrics.json
    """
    import shutil
    from tempfile import TemporaryDirectory

    target, name = split_target(uri)
    options = storage_options(target.scheme, option, options_file)
    with TemporaryDirectory(prefix="wherry-") as folder, reader(target, options, spool_folder(spool)) as uploader:
        path = Path(folder, "object")
        if not _copy_live(uploader, target, name, path, options):
            uploader.get(name, path, progress_bar=not sys.stdout.isatty())
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 2**20)
        sys.stdout.buffer.flush()


def _copy_live(uploader: Uploader, folder: StoreURI, name: str, path: Path, options: Mapping[str, object]) -> bool:
    """Assemble a file from the segments of a mirror; False if no mirror has any at or above its place.

    A plain object of its name may be there, too: of an earlier seal, without what came since.
    """
    from wherry.mirror.reader.pull import open_for_reading
    from wherry.mirror.reader.reader import MirrorReader, find_mirror

    key, is_local = folder.key_for(name), folder.scheme == "file"
    if (prefix := _local_mirror(key) if is_local else find_mirror(uploader.view(), key)) is None:
        return False
    # A local store shows nothing above its own folder, where the mirror's may be.
    opened = open_for_reading(replace(folder, prefix=prefix), options) if is_local else nullcontext(uploader.view())
    with opened as store, MirrorReader(store, prefix, scratch=path.parent) as reader:
        path_there = key.removeprefix(f"{prefix}/") if prefix else key
        look = reader.snapshot()
        if path_there not in look.broken and not (path_there in look.files and look.files[path_there].segments):
            return False
        with open(path, "wb") as out:
            for block in reader.read(path_there):
                out.write(block)
    return True


def _local_mirror(key: str) -> str | None:
    """The innermost folder above a local file that a mirror writes to, as a prefix."""
    from wherry.mirror.format.layout import FOLDER

    above = (str(folder).strip("/") for folder in Path("/", key).parents)
    return next((prefix for prefix in above if os.path.isdir(f"/{prefix}/{FOLDER}")), None)


def rm(
    uri: UriArgument,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="All objects below a prefix.")] = False,
    yes: YesOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
) -> None:
    """Delete one object, or all below a prefix.

    Uploads of these names that are queued on this machine are cancelled.
    -r deletes all objects at and below the URI; it asks first, unless --yes
    is given.

    Example: wherry rm -r s3://my-bucket/run1/
    """
    from concurrent.futures import ThreadPoolExecutor

    from wherry.quantities import size_text
    from wherry.uploader import Uploader

    target = parse_target(uri)
    if not target.prefix:
        raise ConfigError(f"{uri!r} names a whole store: name a prefix, or delete the bucket with its provider's own tools")
    if uri.endswith("/") and not recursive:
        raise ConfigError(f"{uri!r} is a prefix and no object: give -r to delete all objects below it")
    folder, name = (target, "") if uri.endswith("/") else split_target(uri)
    options, place = storage_options(target.scheme, option, options_file), spool_folder(spool)
    with reader(folder, options, place) as found:
        metas = list(_at_or_below(found, name)) if recursive else [_only_object(found, name)]
        is_busy = bool(found.view().queued_under(target.prefix))
    if not metas:
        raise _nothing_at(target, "delete")
    if recursive:
        size = size_text(sum(meta.size_bytes for meta in metas))
        confirm(f"Delete {len(metas)} object(s), {size}, at and below {target}?", yes=yes)
    # An upload under way must end first, and if its agent has died, another must finish it.
    deleting = Uploader(str(folder), storage_options=options, spool=place) if is_busy else reader(folder, options, place)
    with deleting as uploader, ThreadPoolExecutor(_DELETES_AT_ONCE) as pool:
        list(pool.map(uploader.delete, [meta.key for meta in metas]))  # raises the first error
    print_out(f"deleted {len(metas)} object{'s' * (len(metas) > 1)}")


def _at_or_below(uploader: Uploader, name: str) -> Iterator[ObjectMeta]:
    """The object `name` and those below it, not its neighbours whose names only begin alike. Empty: all."""
    return (meta for meta in uploader.list(name) if not name or meta.key == name or meta.key.startswith(f"{name}/"))


def _only_object(uploader: Uploader, name: str) -> ObjectMeta:
    is_prefix = ConfigError(f"{uploader.uri_for(name)} is a prefix and no object: give -r to delete all below it")
    with _or_folder(uploader, name, is_prefix):
        return replace(uploader.head(name), key=name)


@contextmanager
def _or_folder(uploader: Uploader, name: str, is_folder: ConfigError) -> Iterator[None]:
    """Raise `is_folder` in place of NotFoundError if there are objects below `name`."""
    try:
        yield
    except NotFoundError as error:
        if not isinstance(error, BucketNotFoundError) and next(uploader.list(f"{name}/"), None) is not None:
            raise is_folder from error
        raise


def _nothing_at(target: StoreURI, operation: str) -> NotFoundError:
    return NotFoundError("there is no object of this name or below it", operation=operation, uri=str(target))
