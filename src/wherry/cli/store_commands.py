"""The commands about a store: put, ls. Those that take several objects, get, cat, rm, are in store_verbs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import (
    DryRunOption,
    FileOption,
    JsonOption,
    MaxBytesOption,
    OverwriteOption,
    PairsOption,
    SpoolOption,
    TimeoutOption,
    UriArgument,
    destinations,
    error_text,
    pace_of,
    print_done,
    print_err,
    refuse_new_folder,
    split_target,
    spool_folder,
    storage_options,
)
from wherry.cli.exit_codes import Exit, exit_for
from wherry.cli.shell.verbosity import is_quiet, is_verbose
from wherry.errors import AlreadyExistsError, ConfigError, UploadFailed, upload_failed

if TYPE_CHECKING:
    from wherry.spool.handle import UploadHandle
    from wherry.uploader import Uploader
    from wherry.uri import StoreURI


def put(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files or folders; - is stdin.", show_default=False)],
    uri: UriArgument,
    overwrite: OverwriteOption = False,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Accepted, but not needed: folders are uploaded anyway.")
    ] = False,
    move: Annotated[bool, typer.Option("--move", help="Move the files into the spool: they are gone from PATH.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all is uploaded and verified.")] = True,
    timeout: TimeoutOption = None,
    max_bytes_per_s: MaxBytesOption = None,
    dry_run: DryRunOption = False,
    spool: SpoolOption = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload files or folders.

    A URI that ends in / (or is a local folder) gets the name of each PATH
    appended; several PATHs need such a URI. What is uploaded is what a file
    holds now. Links to files are followed, those to folders refused. Ctrl-C
    while waiting leaves the rest to the background.
    Without --overwrite a name that is taken is refused, and nothing is done.
    Of - the whole of standard input is uploaded, however long it is, as the
    object that the URI names: its end is the file's end. With a limit of
    bytes per second this command uploads by itself, and ends when all is done.
    """
    sources: list[Path | None]
    if "-" in paths:
        if len(paths) > 1 or move or options_file == "-":
            raise ConfigError(
                "standard input (-) goes alone, without --move and without options from it: put files by themselves"
            )
        target, name = split_target(uri)
        sources, names = [None], [name]
    else:
        files = [Path(path) for path in paths]
        target, names = destinations(files, uri)
        for path in files:
            path.stat()  # nothing is accepted when one of them is missing
        sources = [*files]
    refuse_new_folder(uri)
    if max_bytes_per_s is not None and not dry_run:
        if move or not wait or timeout is not None:
            raise ConfigError(
                "--max-bytes-per-s holds for this command, so nothing is left to the background, which other programs share: "
                "leave out --move, --no-wait and --timeout, or put without a limit"
            )
        from wherry.cli.copy_verbs.paced_put import put_here
        from wherry.cli.copy_verbs.sides import open_sides

        with open_sides([uri], option, options_file, None, None, spool_folder(spool), pace_of(max_bytes_per_s)) as sides:
            code = put_here(sides, sources, target, names, overwrite=overwrite, as_json=as_json)
        raise typer.Exit(code)
    options = storage_options(target.scheme, option, options_file)
    if dry_run:
        raise typer.Exit(_plan(sources, target, names, options, overwrite=overwrite, as_json=as_json))
    raise typer.Exit(
        put_files(
            sources,
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


def _plan(
    sources: Sequence[Path | None],
    target: StoreURI,
    names: Sequence[str],
    options: Mapping[str, object],
    *,
    overwrite: bool,
    as_json: bool,
) -> Exit:
    """Say which objects `wherry put` would make, and refuse what it would refuse."""
    from wherry.cli.store_verbs.outcome import Outcome
    from wherry.cli.taken_names import refuse_taken
    from wherry.spool.sources import sources_of

    files = [(path, name) for path, name in zip(sources, names, strict=True) if path is not None]
    if not overwrite:
        refuse_taken(target, options, files or [(Path(os.devnull), names[0])])
    outcome = Outcome("uploaded", as_json=as_json, dry_run=True)
    if not files:
        outcome.add("-", -1, target.uri_for(target.key_for(names[0])))
    for path, name in files:
        for file, file_name in sources_of(path, name):
            outcome.add(str(file), file.stat().st_size, target.uri_for(target.key_for(file_name)))
    return outcome.end()


def put_files(
    paths: Sequence[Path | None],
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
    """Upload each of the paths to its name below the target, as `wherry put` does, and say so. Returns the exit code.

    None in the place of a path is standard input, of which only the spool has the bytes.
    """
    from wherry.cli.taken_names import refuse_taken
    from wherry.uploader import Uploader

    if not overwrite:
        nothing = Path(os.devnull)  # where there is no path: it is no folder
        refuse_taken(target, options, [(path or nothing, name) for path, name in zip(paths, names, strict=True)])
    begun_s = time.monotonic()
    uploader = Uploader(str(target), storage_options=options, spool=spool_folder(spool))
    code = Exit.OK
    with _left_to_the_background(uploader):
        handles = [
            _put_stdin(uploader, name, overwrite=overwrite)
            if path is None
            else uploader.put(path, name, overwrite=overwrite, move=move, progress_bar=not is_quiet())
            for path, name in zip(paths, names, strict=True)
        ]
        is_elsewhere = not move and None not in paths  # what failed need not stay in the spool
        if wait:
            try:
                uploader.flush(timeout, progress_bar=not is_quiet())
            except UploadFailed as error:
                print_err(error_text(_without_remedy(error, uploader) if is_elsewhere else error))
                code = exit_for(error)
        for handle in handles:
            _show_upload(handle, uploader, as_json=as_json)
        if wait and not as_json:
            _show_summary(handles, uploader, time.monotonic() - begun_s)
        if wait and is_elsewhere:
            _give_up_failed(uploader, handles)
    return code


def _put_stdin(uploader: Uploader, name: str, *, overwrite: bool) -> UploadHandle:
    """Hand standard input over, up to its end; after an error or Ctrl-C nothing of it is kept."""
    import shutil

    with uploader.open(name, "wb" if overwrite else "xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 2**20)
    assert file.handle is not None, "it was closed, and so accepted"
    return file.handle


def _without_remedy(error: UploadFailed, uploader: Uploader) -> UploadFailed:
    """The error with another remedy if all have failed: the files are still at their PATH, and the spool keeps nothing."""
    from wherry.spool.journal.jobs import JobId

    if isinstance(error, AlreadyExistsError):
        return upload_failed(error.failures, remedy="give --overwrite to replace what is there, or other names")
    if uploader.journal.queries.unfinished(ids=[JobId(failure.job_id) for failure in error.failures]):
        return error  # which waits until somebody mends something
    return upload_failed(error.failures, remedy="the files are where they were, and nothing is kept: mend that, and put again")


def _give_up_failed(uploader: Uploader, handles: Sequence[UploadHandle]) -> None:
    """Free the spool of uploads that have failed: the files are still at their PATH, and whoever waits here was told."""
    uploader.spool.free(uploader.journal.uploads.discard([job_id for handle in handles for job_id in handle.ids])[1])


@contextmanager
def _left_to_the_background(uploader: Uploader) -> Iterator[None]:
    """Sign off in any case, without waiting; after Ctrl-C say how to wait for the rest."""
    from wherry.quantities import count_text, size_text

    try:
        yield
    except KeyboardInterrupt:
        counts = uploader.counts()
        n_left = counts.queued + counts.leased
        rest = f"going on in the background: {count_text(n_left, 'upload')}, {size_text(counts.bytes_queued)}"
        rest = f"{rest}. To wait: {uploader.drain_command()}"
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


def _show_summary(handles: Sequence[UploadHandle], uploader: Uploader, took_s: float) -> None:
    from wherry.cli.store_verbs.outcome import summary_text
    from wherry.spool.journal.jobs import JobState

    jobs = uploader.journal.queries.jobs(ids=[job_id for handle in handles for job_id in handle.ids])
    done = [job for job in jobs if job.state is JobState.DONE]
    if not done:
        return
    more = f", {len(jobs) - len(done)} not" if len(done) < len(jobs) else ""
    n_retries = sum(max(0, job.attempts - 1) for job in jobs)
    print_done(summary_text("uploaded", len(done), sum(job.size_bytes for job in done), took_s, n_retries, more))


def _show_upload(handle: UploadHandle, uploader: Uploader, *, as_json: bool) -> None:
    from wherry.checksum import format_crc32c
    from wherry.cli.words import attempts_text, word
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
        print_done(f"{state:<9}  {size_text(size_bytes):>10}  {handle.uri}")
    if is_verbose():
        for job in jobs:
            tried = "" if job.attempts < 2 else f", {attempts_text(job.attempts)}"
            print_err(f"job {job.id}: {word(job.state)}, {size_text(job.size_bytes)}, {job.uri}{tried}")
