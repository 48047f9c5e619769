"""``wherry doctor --clean``: removes what wherry made and left behind, once it is old enough.

What counts as left behind is decided in `wherry.spool.abandoned_uploads`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from wherry.agent.open_stores import Stores
from wherry.cli.doctor import Finding, Level
from wherry.cli.exit_codes import Exit, exit_for
from wherry.errors import SpoolError, WherryError
from wherry.quantities import count_text
from wherry.redact import redact
from wherry.spool.abandoned_uploads import Tried, clean_known_uploads, clean_marked_uploads, clean_trials
from wherry.spool.download_notes import download_folders
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.queries import StoreRecord
from wherry.spool.spool import Spool
from wherry.store import MultipartStore
from wherry.store.environment import public_environment
from wherry.store.registry import check_usable, endpoint_key, open_store, split_options
from wherry.store.wrappers import RetryStore
from wherry.transfer.resume import clean_stale_downloads
from wherry.uri import StoreURI


def clean_spool(folder: Path, older_than_s: float, *, dry_run: bool = False) -> Generator[Finding, None, None]:
    """Clean what the journal and notes of a spool name: stale downloads, and multipart uploads that nobody completes."""
    if not (folder / "journal.db").exists():
        yield Finding("clean", Level.OK, "nothing to clean: nothing was ever uploaded or downloaded from here")
        return
    try:
        spool = Spool(folder)
        journal = Journal(spool.held_journal())
    except SpoolError as error:
        yield Finding("clean", Level.BAD, str(error), exit=Exit.SPOOL)
        return
    with closing(journal):
        yield from _clean_downloads(spool, older_than_s, dry_run=dry_run)
        stores = Stores(folder / "endpoints.json")
        records = journal.queries.stores()
        for record in records.values():
            where = f"{record.scheme}://{record.root}"
            if missing := stores.unusable({record.id: record}):
                if record.id in missing and any(job.store_id == record.id for job in journal.queries.abandoned_uploads()):
                    needed = ", ".join(record.secret_names) or "the environment of the program that made them"
                    text = f"{where} has uploads to abort, and needs {needed}"
                    yield Finding("clean", Level.WARN, text, f"wherry doctor --clean {where} --options-file FILE")
                continue
            yield from _clean_known(journal, record, stores, where, dry_run=dry_run)


def clean_store(
    uri: StoreURI, options: Mapping[str, object], folder: Path, older_than_s: float, *, dry_run: bool = False
) -> Generator[Finding, None, None]:
    """Clean below `uri`: uploads and trials with our mark, whoever began them, and what the journal in `folder` knows of."""
    with ExitStack() as stack:
        journal = None
        try:
            if (folder / "journal.db").exists():
                journal = stack.enter_context(closing(Journal(Spool(folder).held_journal())))
            check_usable(uri.scheme, options)
            store = stack.enter_context(RetryStore(open_store(uri, options)))
            n_found = n_removed = 0
            base = f"{uri.prefix}/" if uri.prefix else ""
            if journal is not None:
                public, _ = split_options(uri.scheme, options)
                ours = (uri.scheme, uri.root, endpoint_key(uri.scheme, public, public_environment(uri.scheme)))
                for record in journal.queries.stores().values():
                    if (record.scheme, record.root, record.endpoint_key) == ours:  # another server would not know its uploads
                        for upload in clean_known_uploads(journal, record.id, lambda _: store, dry_run=dry_run):
                            n_found += 1
                            yield Finding(*_done("aborted", dry_run), f"an upload in parts of {uri.uri_for(upload.key)}")
            if isinstance(store.inner, MultipartStore) and store.capabilities.multipart:
                for upload in clean_marked_uploads(store, base, journal, older_than_s, dry_run=dry_run):
                    n_found += 1
                    yield Finding(*_done("aborted", dry_run), f"an upload in parts of {uri.uri_for(upload.key)}")
                if unmarked := sum(not one.is_ours for one in store.list_uploads(base)):
                    text = f"{count_text(unmarked, 'upload')} in parts, under way or left behind, that this spool has not begun"
                    yield Finding("others'", Level.OK, text, "a lifecycle rule (AbortIncompleteMultipartUpload) ends such")
            if isinstance(store.inner, Tried):
                for key in clean_trials(store.inner, base, older_than_s, dry_run=dry_run):
                    n_removed += 1
                    yield Finding(*_done("removed", dry_run), f"{uri.uri_for(key)}, of a trial of the server")
            would = "would be " if dry_run else ""
            text = f"{count_text(n_found, 'upload')} in parts {would}aborted, {count_text(n_removed, 'object')} {would}removed"
            yield Finding("clean", Level.OK, text if n_found or n_removed else "nothing of ours was left behind")
        except (WherryError, OSError) as error:
            yield Finding("clean", Level.BAD, str(error), exit=exit_for(error))


def _clean_downloads(spool: Spool, older_than_s: float, *, dry_run: bool) -> Iterator[Finding]:
    n_found, would = 0, "would be " if dry_run else ""
    for folder in download_folders(spool):
        for path in clean_stale_downloads(folder, older_than_s, dry_run=dry_run):
            n_found += 1
            yield Finding(*_done("removed", dry_run), str(path))
    text = f"{count_text(n_found, 'file')} of broken downloads {would}removed" if n_found else "no stale download"
    yield Finding("downloads", Level.OK, text)


def _clean_known(journal: Journal, record: StoreRecord, stores: Stores, where: str, *, dry_run: bool) -> Iterator[Finding]:
    try:
        cleaned = clean_known_uploads(journal, record.id, lambda _: stores.open(record).store, dry_run=dry_run)
    except (WherryError, OSError) as error:
        yield Finding("uploads", Level.WARN, f"{where}: {redact(str(error))}", "the next agent tries again")
        return
    for upload in cleaned:
        yield Finding(*_done("aborted", dry_run), f"an upload in parts of {where}/{upload.key}")


def _done(what: str, dry_run: bool) -> tuple[str, Level]:
    return {"aborted": "would abort", "removed": "would remove"}[what] if dry_run else what, Level.OK
