"""What each of fsspec's file systems can do, by protocol: how it publishes an object, who decides that a name is taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem


def _move(fs: Any, old: str, new: str) -> None:
    fs.mv(old, new)


def _link_then_remove(fs: Any, old: str, new: str) -> None:
    fs.link(old, new)
    fs.rm_file(old)


def _sftp_rename(fs: Any, old: str, new: str) -> None:
    # draft-ietf-secsh-filexfer-02, 6.5: a plain rename is refused when the new name exists. fs.mv() is OpenSSH's posix-rename.
    try:
        fs.ftp.rename(old, new)
    except OSError as error:
        if fs.exists(new):  # the answer says no more than "failure"
            raise FileExistsError(str(error)) from error
        raise


def _remove_then_move(fs: Any, old: str, new: str) -> None:
    with suppress(FileNotFoundError):
        fs.rm_file(new)
    fs.mv(old, new)


@dataclass(frozen=True)
class Traits:
    """How one kind of file system publishes an object."""

    #: Renames the temporary file to the final name. None: a put shows nothing before it ends, so it needs no temporary name.
    rename: Callable[[Any, str, str], None] | None = None
    #: The same, but raises FileExistsError if the final name is taken, decided by the server.
    rename_if_absent: Callable[[Any, str, str], None] | None = None
    #: put_file(mode="create") is decided by the server; in memory, by a lock of ours.
    creates: bool = False
    #: Replacing is one step.
    atomic: bool = True
    #: Bytes are handed over in one piece (memory).
    in_one_piece: bool = False
    process_local: bool = False
    #: One instance may be used by several threads at once. None: if it is an asynchronous one.
    shared: bool | None = None


_OBJECTS = Traits()
_FILES = Traits(rename=_move)
TRAITS: dict[str, Traits] = {
    **dict.fromkeys(("gdrive", "hf", "lakefs", "oci", "ocilake", "oss", "tos", "tosfs"), _OBJECTS),
    **dict.fromkeys(("abfs", "abfss", "az"), Traits(creates=True)),  # adlfs: upload_blob(overwrite=False), If-None-Match: *
    **dict.fromkeys(("dbfs", "ftp", "hdfs", "webdav"), _FILES),
    **dict.fromkeys(("sftp", "ssh"), Traits(rename=_move, rename_if_absent=_sftp_rename)),
    "file": Traits(rename=_move, rename_if_absent=_link_then_remove, shared=True),
    "memory": Traits(creates=True, in_one_piece=True, process_local=True, shared=True),
    "smb": Traits(rename=_remove_then_move, rename_if_absent=_move, atomic=False),  # smbclient.rename() never replaces
    "webhdfs": Traits(rename=_remove_then_move, atomic=False),  # HDFS refuses to rename over a file
}


def traits_of(protocol: str, fs: Any) -> Traits:
    """From the table; an unknown file system is taken for files if it can rename, else for an object store."""
    if (known := TRAITS.get(protocol)) is not None:
        return known
    return _OBJECTS if fs.async_impl or type(fs).mv is AbstractFileSystem.mv else _FILES
