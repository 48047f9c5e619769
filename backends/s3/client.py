"""Makes the low-level clients of boto3: a stalled request is cut in both ways; no retries, no chunked bodies, no own checksums.

A boto3 session finds credentials, profile, SSO and settings as its users know them. Its resources and its transfer manager are
not used.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import IO, TYPE_CHECKING, Any, cast
from weakref import WeakSet

import boto3.session
import botocore.session
from botocore import UNSIGNED
from botocore.awsrequest import AWSHTTPConnection, AWSHTTPConnectionPool, AWSHTTPSConnection, AWSHTTPSConnectionPool
from botocore.config import Config
from botocore.loaders import JSONFileLoader, Loader
from urllib3.exceptions import InsecureRequestWarning, ReadTimeoutError

from wherry.backends.s3.body import Source
from wherry.backends.s3.listing import leave_out_what_cannot_be
from wherry.backends.s3.options import S3Options, is_amazons
from wherry.errors import ConfigError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

#: The ending of the name of every directory bucket.
DIRECTORY_BUCKET = "--x-s3"
#: Those that have an endpoint of their own in what a client, or its credentials, asks for.
_SERVICES = frozenset({"s3", "sts", "oidc", "portal.sso", "signin"})
#: How botocore keeps its models.
_OPEN: dict[str, Callable[[str, str], IO[bytes]]] = {".json": cast("Any", open), ".json.gz": cast("Any", gzip.open)}
#: The environment of a running process does not change, and neither do keys from the storage options.
_FIXED_CREDENTIALS = frozenset({"explicit", "env"})


@dataclass(frozen=True)
class Connection:
    """A client; whether making it anew may find newer credentials; whether its listings come in the order of keys."""

    client: S3Client
    is_renewable: bool
    lists_in_order: bool
    signs_payloads: bool
    #: All that are open, also those that urllib3's pools do not know any more.
    sockets: WeakSet[socket.socket]

    def close(self) -> None:
        """Close all connections, also one that an error has dropped and that only the garbage collector would find."""
        self.client.close()
        for one in list(self.sockets):
            if (descriptor := one.detach()) >= 0:  # close() would wait for the end of a response that reads from it
                os.close(descriptor)


def connect(options: S3Options, bucket: str, *, signs_payloads: bool = False) -> Connection:
    """Make a client: 50 ms and, the first time, the reading of botocore's model of the service.

    `signs_payloads`: put each body's SHA-256 into its signature. That reads it twice, and costs more than sending it; the CRC32C
    in a signed header does the same against all but malice. Few servers insist.
    """
    core = _Session(profile=options.profile)
    core.register_component("data_loader", _models(core.get_config_variable("data_path")))
    session = boto3.session.Session(botocore_session=core)
    endpoint = options.endpoint(core)
    region = options.region or session.region_name or os.environ.get("AWS_REGION")
    config = Config(
        signature_version=UNSIGNED if options.anonymous else None,
        retries={"total_max_attempts": 1, "mode": "standard"},  # only our own policy counts
        # Ours are known before the first byte is sent, and go into headers. "when_supported", which is botocore's own default and
        # may be asked for by the environment and the profile, would send them behind the body, in a framing (aws-chunked) that
        # some servers store as a part of the object (boto/boto3#4435).
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.max_connections,
        tcp_keepalive=True,
        user_agent_extra="wherry",
        s3={
            "addressing_style": options.addressing_style or ("path" if endpoint else "auto"),
            "payload_signing_enabled": signs_payloads,
        },
    )
    if options.verify is False:  # said once by wherry itself
        warnings.filterwarnings("ignore", category=InsecureRequestWarning)
    try:
        client = session.client(
            "s3",
            region_name=region or ("us-east-1" if endpoint else None),
            endpoint_url=endpoint,
            verify=None if options.verify is True else options.verify,  # None: AWS_CA_BUNDLE counts
            aws_access_key_id=options.aws_access_key_id,
            aws_secret_access_key=options.aws_secret_access_key,
            aws_session_token=options.aws_session_token,
            config=config,
        )
    except ValueError as error:  # no host name, no region
        raise ConfigError(f"no S3 client can be made: {error}") from error
    client.meta.events.register_last("before-call.s3", _send_small_bodies_at_once)
    client.meta.events.register_last("before-call.s3.HeadBucket", _do_not_redirect)
    client.meta.events.register("before-parse.s3.ListObjectsV2", leave_out_what_cannot_be)
    sockets: WeakSet[socket.socket] = WeakSet()
    _watch_connections(client, options.read_timeout_s, sockets)
    credentials = None if options.anonymous or options.aws_access_key_id else session.get_credentials()
    return Connection(
        client,
        is_renewable=credentials is not None and credentials.method not in _FIXED_CREDENTIALS,
        lists_in_order=is_amazons(endpoint) and not bucket.endswith(DIRECTORY_BUCKET),
        signs_payloads=signs_payloads,
        sockets=sockets,
    )


class _Session(botocore.session.Session):
    """A session that adds no transfer methods to its clients.

    Nobody calls them, and they may choose CRT, which sends to Amazon whatever the endpoint (boto/boto3#4839).
    """

    def register(self, event_name: str, *arguments: Any, **options: Any) -> None:
        """Take an event's handler, but not the one of boto3 that adds those methods."""
        if event_name != "creating-client-class.s3":
            super().register(event_name, *arguments, **options)


@cache
def _models(folders: str | None) -> Loader:
    """One for all clients of a process, as each would take 50 ms; `folders` is the setting ``data_path``."""
    extra = [os.path.expanduser(os.path.expandvars(folder)) for folder in (folders or "").split(os.pathsep) if folder]
    return _Loader(extra_search_paths=extra, file_loader=_Models())


class _Loader(Loader):
    """A loader whose folders stay as they are: boto3 adds its own, of resources only, for each session that it makes."""

    @property
    def search_paths(self) -> list[str]:
        """A copy, so that what is appended to it is lost."""
        return list(super().search_paths)


class _Models(JSONFileLoader):
    """Reads the files of botocore's models, and keeps only what S3 and its credentials need: 4 of 14 MB."""

    def load_file(self, file_path: str) -> Any:
        """What the file has; None if there is none."""
        for ending, open_ in _OPEN.items():
            if os.path.isfile(file_path + ending):
                with open_(file_path + ending, "rb") as file:
                    model = json.load(file, object_hook=_without_documentation)
                if os.path.basename(file_path) == "endpoints":
                    for partition in model["partitions"]:
                        services = partition["services"]
                        partition["services"] = {service: services[service] for service in _SERVICES & services.keys()}
                return model
        return None


def _without_documentation(model: dict[str, Any]) -> dict[str, Any]:
    if isinstance(model.get("documentation"), str):
        model["documentation"] = ""  # botocore counts on the key, here and there
    return model


def _send_small_bodies_at_once(params: dict[str, Any], **_: object) -> None:
    """Take back the "Expect: 100-continue" that botocore adds to every body."""
    if not isinstance(params["body"], Source):
        params["headers"].pop("Expect", None)


def _do_not_redirect(context: dict[str, Any], **_: object) -> None:
    """Have botocore (1.44) ask for a bucket's region once.

    It does so, with a HEAD, after a redirect that does not say the region; one more such answer would have it ask again, and so
    on until Python's stack is full.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


def _watch_connections(client: Any, timeout_s: float, sockets: WeakSet[socket.socket]) -> None:
    """Have sends wait for `timeout_s`, as reads do, when the server takes no more bytes, and `sockets` know all that are open.

    urllib3 (2.8) gives them the time-out of connecting, and botocore (1.44) has no setting for it. There is no public way to its
    pools of connections: if they have moved, sends keep that other time-out.
    """
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    pools = getattr(session, "_pool_classes_by_scheme", None)
    if isinstance(pools, dict):
        plain, secure = (
            type(kind.__name__, (_Patient, kind), {"send_timeout_s": timeout_s, "sockets": sockets})
            for kind in (AWSHTTPConnection, AWSHTTPSConnection)
        )
        pools["http"] = type("Pool", (AWSHTTPConnectionPool,), {"ConnectionCls": plain})
        pools["https"] = type("Pool", (AWSHTTPSConnectionPool,), {"ConnectionCls": secure})


class _Patient:
    """The sending part of a connection: a body goes block by block, and the time-out is for each block, not for all of them."""

    send_timeout_s: float
    sockets: WeakSet[socket.socket]
    sock: Any
    timeout: float | None

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self.sockets.add(self.sock)

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is None:
            self.connect()  # it still has its own time-out
        self.timeout = self.send_timeout_s
        super().request(*arguments, **options)  # type: ignore[misc]

    def send(self, data: Any) -> None:
        try:
            super().send(data)  # type: ignore[misc]
        except TimeoutError as error:
            text = f"no byte was taken for {self.send_timeout_s:g} s"
            raise ReadTimeoutError(cast("Any", None), "", text) from error
