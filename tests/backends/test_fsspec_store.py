"""The store on fsspec's file systems: conformance over a real SFTP connection, and its table of errors."""

from __future__ import annotations

import ftplib
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import paramiko
import pytest

from wherry.backends.fsspec.error_table import translate
from wherry.backends.fsspec.store import FsspecStore
from wherry.backends.fsspec.traits import TRAITS
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConfigError,
    MissingExtraError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
    about,
)
from wherry.store import ObjectStore, PutOptions
from wherry.testing import StoreConformance
from wherry.uri import StoreURI, parse_uri

FTP_REFUSED, FTP_BUSY = ftplib.error_perm, ftplib.error_temp
USER, PASSWORD = "sailor", "hunter2-hunter2"


class Login(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko ships no types
    """Lets one user in, with a password."""

    def check_auth_password(self, username: str, password: str) -> int:
        right = (username, password) == (USER, PASSWORD)
        return int(paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)


class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]
    """A folder, with the answers of OpenSSH's sftp-server."""

    def __init__(self, server: paramiko.ServerInterface, folder: Path) -> None:
        super().__init__(server)
        self.folder = folder

    def _real(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    @contextmanager
    def _answering(self, answer: list[Any]) -> Iterator[None]:
        try:
            yield
            answer.append(paramiko.SFTP_OK)
        except OSError as error:
            answer.append(paramiko.SFTPServer.convert_errno(error.errno))

    def list_folder(self, path: str) -> Any:
        answer: list[Any] = []
        with self._answering(answer):
            names = os.listdir(self._real(path))
            answer.append([paramiko.SFTPAttributes.from_stat(os.lstat(self._real(path) / name), name) for name in names])
        return answer[0]

    def stat(self, path: str) -> Any:
        answer: list[Any] = []
        with self._answering(answer):
            answer.append(paramiko.SFTPAttributes.from_stat(os.stat(self._real(path))))
        return answer[0]

    def lstat(self, path: str) -> Any:
        return self.stat(path)

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> Any:
        answer: list[Any] = []
        with self._answering(answer):
            file = os.fdopen(os.open(self._real(path), flags, 0o644), "wb" if flags & os.O_WRONLY else "rb", buffering=0)
            handle = paramiko.SFTPHandle(flags)
            handle.readfile = handle.writefile = file
            answer.append(handle)
        return answer[0]

    def _do(self, call: Any, *arguments: Any) -> int:
        answer: list[Any] = []
        with self._answering(answer):
            call(*arguments)
        return int(answer[0])

    def remove(self, path: str) -> int:
        return self._do(os.remove, self._real(path))

    def rename(self, oldpath: str, newpath: str) -> int:
        """Refused when the new name exists, decided by link(2), as process_rename() of OpenSSH does."""

        def link_then_unlink() -> None:
            os.link(self._real(oldpath), self._real(newpath))
            os.unlink(self._real(oldpath))

        return self._do(link_then_unlink)

    def posix_rename(self, oldpath: str, newpath: str) -> int:
        return self._do(os.replace, self._real(oldpath), self._real(newpath))

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        return self._do(os.mkdir, self._real(path))

    def rmdir(self, path: str) -> int:
        return self._do(os.rmdir, self._real(path))


class SFTPServer:
    """An SFTP server on a free port of this machine, one thread to accept and paramiko's for each connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = paramiko.ECDSAKey.generate()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._transports: list[paramiko.Transport] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = paramiko.Transport(connection)
            transport.add_server_key(self._key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files, self.folder)
            self._transports.append(transport)
            try:
                transport.start_server(event=threading.Event(), server=Login())
            except paramiko.SSHException:  # the client went away
                transport.close()

    @property
    def n_open(self) -> int:
        """How many connections are open."""
        return sum(transport.is_active() for transport in self._transports)

    def cut(self) -> None:
        """Cut all connections."""
        for transport in self._transports:
            transport.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)
        for transport in self._transports:
            transport.close()
            transport.join(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SFTPServer]:
    server = SFTPServer(tmp_path_factory.mktemp("sftp"))
    yield server
    server.close()


def sftp_store(server: SFTPServer, **options: object) -> FsspecStore:
    login: dict[str, object] = {"username": USER, "password": PASSWORD, "allow_agent": False, "look_for_keys": False}
    return FsspecStore(StoreURI("sftp", f"127.0.0.1:{server.port}"), {**login, **options})


def file(folder: Path, data: bytes = b"data") -> Path:
    path = folder / uuid.uuid4().hex
    path.write_bytes(data)
    return path


class TestSFTP(StoreConformance):
    @pytest.fixture
    def store(self, server: SFTPServer) -> Iterator[ObjectStore]:
        with sftp_store(server) as store:
            self.folder = server.folder
            yield store

    def raw_names(self, store: ObjectStore, prefix: str) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in (self.folder / prefix).rglob("*") if path.is_file()}

    @pytest.mark.slow  # a hundred walks over SFTP; TestFsspecLocal runs the same code
    def test_listing_starts_after_any_key_of_folders(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        super().test_listing_starts_after_any_key_of_folders(store, prefix, tmp_path)


def test_lost_connection_is_transient_and_replaced(server: SFTPServer, tmp_path: Path) -> None:
    with sftp_store(server) as store:
        store.put_file("cut/a", file(tmp_path))
        server.cut()
        with pytest.raises(TransientError):
            store.head("cut/a")
        assert store.head("cut/a").size_bytes == 4


def test_close_frees_the_connections(server: SFTPServer, tmp_path: Path) -> None:
    server.cut()
    store = sftp_store(server)
    store.put_file("close/a", file(tmp_path))
    assert server.n_open == 1
    store.close()
    for transport in server._transports:
        transport.join(60)
    assert server.n_open == 0


def test_wrong_password_is_denied_and_not_repeated(server: SFTPServer) -> None:
    with pytest.raises(AccessDeniedError) as caught:
        sftp_store(server, password="hunter3-hunter3")
    assert "hunter3" not in str(caught.value)


def test_server_that_is_not_there_is_transient() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(TransientError):
        FsspecStore(StoreURI("sftp", f"127.0.0.1:{port}"), {"username": USER, "password": PASSWORD})


def test_option_that_the_file_system_does_not_take_is_refused(server: SFTPServer) -> None:
    with pytest.raises(ConfigError, match="colour"):
        sftp_store(server, colour="red")


def test_memory_urls_are_fsspecs_own(tmp_path: Path) -> None:
    root = uuid.uuid4().hex
    with FsspecStore(parse_uri(f"memory://{root}"), {}) as store:
        store.put_file("a/b", file(tmp_path, b"seen by others"))
        assert fsspec.filesystem("memory").cat(f"/{root}/a/b") == b"seen by others"
        fsspec.filesystem("memory").pipe(f"/{root}/c", b"seen by us")
        assert [meta.key for meta in store.list()] == ["a/b", "c"]
    with FsspecStore(parse_uri("memory://"), {}) as store:
        assert store.head(f"{root}/c").size_bytes == 10


def test_folder_and_file_cannot_share_a_name(server: SFTPServer, tmp_path: Path) -> None:
    for store in (sftp_store(server), FsspecStore(StoreURI("memory", uuid.uuid4().hex), {})):
        with store:
            store.put_file("share/a/b", file(tmp_path))
            for if_absent in (True, False):
                with pytest.raises(PermanentError, match="folder") as caught:
                    store.put_file("share/a", file(tmp_path), PutOptions(if_absent=if_absent))
                assert not isinstance(caught.value, AlreadyExistsError)
            with pytest.raises(StoreError):
                store.put_file("share/a/b/c", file(tmp_path), PutOptions(if_absent=True))
            store.delete("share/a")
            assert [meta.key for meta in store.list("share/")] == ["share/a/b"]


def test_key_that_the_file_system_would_change_is_refused(tmp_path: Path) -> None:
    with FsspecStore(StoreURI("memory", "x"), {}) as store:
        for key in ("a/../b", "a//b", "./a"):
            with pytest.raises(PermanentError, match="cannot hold a key"):
                store.put_file(key, file(tmp_path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"az://box cannot be opened with these storage options \(none\): Must provide either a connection_string"),
        ({"connection_string": "secret"}, r"\(connection_string\): Connection string is either blank or malformed"),
    ],
)
def test_wrong_options_are_told_in_our_words_and_not_shown(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        FsspecStore(StoreURI("az", "box"), options)
    assert "secret" not in str(caught.value)
    assert "ValueError" not in str(caught.value)


def test_conditional_put_is_told_as_the_table_has_it(tmp_path: Path) -> None:
    """Who looks first and puts second says so."""
    decided = {"abfs", "abfss", "az", "file", "memory", "sftp", "smb", "ssh"}
    assert decided == {name for name, how in TRAITS.items() if how.creates or how.rename_if_absent is not None}
    with FsspecStore(StoreURI("file", "", str(tmp_path)), {}) as store:
        assert store.capabilities.conditional_put


def test_only_regular_files_are_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with FsspecStore(StoreURI("memory", "x"), {}) as store:
        for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
            with pytest.raises(PermanentError, match="no regular file"):
                store.put_file("a", path)


def test_missing_library_is_named() -> None:
    with pytest.raises(MissingExtraError, match="ocifs"):
        FsspecStore(StoreURI("oci", "container"), {})


def test_capabilities_come_from_the_table(server: SFTPServer) -> None:
    with FsspecStore(StoreURI("memory", "x"), {}) as memory, sftp_store(server) as sftp:
        assert (memory.capabilities.process_local, memory.capabilities.conditional_put) == (True, True)
        assert (sftp.capabilities.process_local, sftp.capabilities.conditional_put) == (False, True)
        assert not memory.capabilities.multipart


class StatusError(Exception):
    """As the libraries of HTTP services raise them."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), NotFoundError),
        (PermissionError("x"), AccessDeniedError),
        (FileExistsError("x"), PermanentError),
        (IsADirectoryError("x"), PermanentError),
        (TimeoutError(), TransientError),
        (ConnectionResetError("x"), TransientError),
        (EOFError(), TransientError),
        (OSError("Failure"), TransientError),
        (StatusError(400), PermanentError),
        (StatusError(401), AccessDeniedError),
        (StatusError(403), AccessDeniedError),
        (StatusError(404), NotFoundError),
        (StatusError(408), TransientError),
        (StatusError(429), ThrottledError),
        (StatusError(500), TransientError),
        (StatusError(503), TransientError),
        (FTP_REFUSED("550 no such file"), NotFoundError),
        (FTP_REFUSED("530 login"), AccessDeniedError),
        (FTP_REFUSED("552 quota"), TransientError),
        (FTP_REFUSED("501 syntax"), PermanentError),
        (FTP_BUSY("421 busy"), TransientError),
        (paramiko.SSHException("lost"), TransientError),
        (paramiko.AuthenticationException("no"), AccessDeniedError),
        (NotImplementedError("mv"), PermanentError),
        (ValueError("x"), PermanentError),
    ],
)
def test_error_decides_the_class(error: Exception, kind: type[StoreError]) -> None:
    with pytest.raises(kind) as raised, about("put", "sftp://host/x"):
        raise translate(error, "sftp")
    assert kind is raised.type
    assert "put sftp://host/x" in str(raised.value)
