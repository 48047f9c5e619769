"""Stores on real servers, for tests that put a fault proxy before them: how requests are told apart, what errors look like."""

from __future__ import annotations

import functools
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import botocore.session
from botocore.config import Config as SDKConfig

from servers.gcs_server import GCSServer
from servers.proxy import Answer, FaultProxy, When, gcs_error, s3_error
from servers.real import S3Server, Server
from wherry import Uploader
from wherry.backends.memory import MemoryStore
from wherry.config import AgentConfig, Config, RetryConfig, TransferConfig
from wherry.errors import StoreError
from wherry.store import MultipartStore
from wherry.store.registry import open_store
from wherry.store.server_features import Endpoints
from wherry.uri import StoreURI

SMALL_BYTES = 40_000
RANGE_BYTES = 2**16
OTHER = b"another's bytes"
QUICK = RetryConfig(job_deadline_s=60.0, call_deadline_s=20.0, first_wait_s=0.001, longest_wait_s=0.01)
#: For faults that are noticed by a time-out only. A server that is slower than that, for once, costs a retry and no more.
IMPATIENCE_S = 0.5

#: As a server refuses that asks every body for a checksum, as with a default of object lock, and says so in its own words.
OBJECT_LOCK = When(
    "PUT",
    "",
    s3_error(400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required with Object Lock parameters"),
    times=10**6,
    header=r"\A(?![\s\S]*^(content-md5|x-amz-checksum-crc32c|x-amz-copy-source):)",
)

#: Which request of an upload a fault meets: the only one of a small object; or the begin of one in parts, one of its parts, the
#: request that joins them.
Step = Literal["put", "begin", "part", "complete"]
STEPS: tuple[Step, ...] = ("put", "begin", "part", "complete")
DATA_STEPS: tuple[Step, ...] = ("put", "part")
MAKING_STEPS: tuple[Step, ...] = ("put", "complete")


class World(ABC):
    """A store: how its requests are told apart on the wire, how it words its errors, and what it has."""

    name: str
    scheme: str
    part_size_bytes: int
    large_bytes: int

    def __init__(self, server: Server, store: MultipartStore) -> None:
        self.server = server
        self.store = store

    @abstractmethod
    def options(self, url: str, timeout_s: float | None) -> dict[str, object]:
        """Storage options that go through a proxy."""

    @abstractmethod
    def request(self, step: Step, key: str) -> tuple[str, str, int]:
        """Method, target and number of the request that a step is."""

    @abstractmethod
    def data_requests(self, key: str) -> tuple[str, str]:
        """Method and target of all requests that carry the object's bytes."""

    @abstractmethod
    def look(self, key: str) -> tuple[str, str]:
        """Method and target of a look at the object (head)."""

    @abstractmethod
    def get(self, key: str) -> tuple[str, str]:
        """Method and target of a download."""

    @abstractmethod
    def cleaning(self, key: str) -> tuple[str, str]:
        """Method and target of what takes back an upload in parts."""

    @abstractmethod
    def error(self, code: str, **options: object) -> Answer:
        """An error answer, named as S3 names it."""

    @abstractmethod
    def leftovers(self, key: str) -> list[str]:
        """What is there of uploads to the key that are not over."""

    def may_be_left(self, key: str, proxy: FaultProxy) -> int:
        """How many uploads without a part may be left: begun, but their name was lost with the answer."""
        return 0


class S3World(World):
    """SeaweedFS."""

    name, scheme = "S3", "s3"
    part_size_bytes, large_bytes = 5 * 2**20, 5 * 2**20 + 1
    STATUS: ClassVar[dict[str, int]] = {
        "SlowDown": 503,
        "TooManyRequests": 429,
        "InternalError": 500,
        "RequestTimeout": 400,
        "AccessDenied": 403,
        "ExpiredToken": 400,
        "RequestTimeTooSkewed": 403,
        "NoSuchUpload": 404,
        "PreconditionFailed": 412,
        "ConditionalRequestConflict": 409,
    }

    def __init__(self, server: S3Server, store: MultipartStore) -> None:
        super().__init__(server, store)
        self._credentials = server.options
        self._client: Any = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            config=SDKConfig(s3={"addressing_style": "path"}),
        )

    def options(self, url: str, timeout_s: float | None) -> dict[str, object]:
        return {**self._credentials, "endpoint_url": url, **({} if timeout_s is None else {"read_timeout_s": timeout_s})}

    def request(self, step: Step, key: str) -> tuple[str, str, int]:
        return {
            "put": ("PUT", f"/{key}$", 1),
            "begin": ("POST", rf"/{key}\?uploads", 1),
            "part": ("PUT", rf"/{key}\?.*partNumber=1(&|$)", 1),
            "complete": ("POST", rf"/{key}\?uploadId=", 1),
        }[step]

    def data_requests(self, key: str) -> tuple[str, str]:
        return "PUT", f"/{key}"

    def look(self, key: str) -> tuple[str, str]:
        return "HEAD", f"/{key}$"

    def get(self, key: str) -> tuple[str, str]:
        return "GET", f"/{key}$"

    def cleaning(self, key: str) -> tuple[str, str]:
        return "DELETE", rf"/{key}\?uploadId="

    def error(self, code: str, **options: object) -> Answer:
        return s3_error(self.STATUS[code], code, **options)  # type: ignore[arg-type]

    def leftovers(self, key: str) -> list[str]:
        found = self._client.list_multipart_uploads(Bucket=self.server.bucket, Prefix=key)
        uploads = [upload["UploadId"] for upload in found.get("Uploads", [])]
        return [f"{upload}: {len(self.store.list_parts(key, upload))} parts" for upload in uploads]

    def may_be_left(self, key: str, proxy: FaultProxy) -> int:
        method, target, _ = self.request("begin", key)
        return max(0, len(proxy.requests(method, target)) - 1)


class GCSWorld(World):
    """The strict GCS server."""

    name, scheme = "GCS", "gs"
    part_size_bytes, large_bytes = 64 * 2**10, 3 * 64 * 2**10
    STATUS: ClassVar[dict[str, tuple[int, str]]] = {
        "SlowDown": (503, "backendError"),
        "TooManyRequests": (429, "rateLimitExceeded"),
        "InternalError": (500, "internalError"),
        "RequestTimeout": (408, "uploadBrokenConnection"),
        "AccessDenied": (403, "forbidden"),
        "ExpiredToken": (401, "authError"),
        "NoSuchUpload": (404, "notFound"),
        "PreconditionFailed": (412, "conditionNotMet"),
        "ConditionalRequestConflict": (409, "conflict"),
    }

    def __init__(self, server: GCSServer, store: MultipartStore) -> None:
        super().__init__(server, store)
        self._gcs = server

    def options(self, url: str, timeout_s: float | None) -> dict[str, object]:
        return {**self._gcs.options, "endpoint_url": url, **({} if timeout_s is None else {"timeout_s": timeout_s})}

    def request(self, step: Step, key: str) -> tuple[str, str, int]:
        return {
            "put": ("POST", "^/upload/.*uploadType=multipart", 1),
            "begin": ("POST", "^/upload/.*ifGenerationMatch=0", 1),
            "part": ("POST", "^/upload/.*uploadType=multipart$", 2),
            "complete": ("POST", f"/o/{quote(key, safe='')}/compose", 1),
        }[step]

    def data_requests(self, key: str) -> tuple[str, str]:
        return "POST", "^/upload/"

    def look(self, key: str) -> tuple[str, str]:
        return "GET", rf"^/storage/.*/o/{quote(key, safe='')}(\?|$)"

    def get(self, key: str) -> tuple[str, str]:
        return "GET", f"^/download/.*/o/{quote(key, safe='')}"

    def cleaning(self, key: str) -> tuple[str, str]:
        return "DELETE", f"/o/{quote(key, safe='')}(?!.*join-0-00000)"  # begin() tries its rights on that name

    def error(self, code: str, **options: object) -> Answer:
        return gcs_error(*self.STATUS[code], **options)  # type: ignore[arg-type]

    def leftovers(self, key: str) -> list[str]:
        return sorted(self._gcs.names(key) - {key})


def slug(name: str) -> str:
    """A name as a part of a test's id, so that -k can name it."""
    return re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")


@functools.lru_cache
def some_bytes(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


def object_of(world: World, key: str, folder: Path) -> bytes | None:
    """What is under the key, and it is alone there."""
    found = list(world.store.list(key))
    assert [] == [meta.key for meta in found if meta.key != key]
    if not found:
        return None
    (folder / "found").write_bytes(b"")
    world.store.get_file(key, folder / "found", end=found[0].size_bytes)
    return (folder / "found").read_bytes()


def transfer_of(world: World) -> TransferConfig:
    """The smallest parts and ranges that make a large object of a few."""
    return TransferConfig(world.part_size_bytes, world.part_size_bytes, 2, RANGE_BYTES, 2)


@contextmanager
def uploader_of(world: World, key: str, folder: Path, url: str, timeout_s: float | None = None) -> Iterator[tuple[Uploader, str]]:
    """An uploader that works in this process, and the key as its remote name."""
    prefix, _, name = key.rpartition("/")
    config = Config(transfer=transfer_of(world), retry=QUICK, agent=AgentConfig(run_in="caller"))
    uri, options = f"{world.scheme}://{world.server.bucket}/{prefix}", world.options(url, timeout_s)
    with Uploader(uri, storage_options=options, spool=folder / "spool", config=config) as uploader:
        leave_untried(world, options, folder / "spool")
        yield uploader, name


class _Untried(MemoryStore):
    """Stands for a server whose trial has just failed."""

    def probe(self, key_prefix: str) -> Mapping[str, bool]:
        raise StoreError("not tried here")


def leave_untried(world: World, options: Mapping[str, object], spool: Path) -> None:
    """Have nobody find out what the server honours: the trial after the first upload took six times as long as the upload.

    Uploads take the careful way, as the first one to any server does.
    """
    server = _Untried(StoreURI("memory", "untried"), {})
    with open_store(StoreURI(world.scheme, world.server.bucket), options) as store:
        server.endpoint = store.endpoint
    Endpoints(spool / "endpoints.json").find_out(server, "key")
