"""Makes the clients of botocore: a stalled request is cut in both ways; no retries, no chunked bodies, no own checksums.

A botocore session finds credentials, profile, SSO and settings as users of boto3 know them. boto3 itself is not imported: its
clients are botocore's, and nobody needs what it adds, resources and a transfer manager. They take a quarter of the time of all
imports, and the manager may choose CRT, which sends to Amazon whatever the endpoint (boto/boto3#4839).
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

import botocore.session
from botocore import UNSIGNED
from botocore.awsrequest import AWSHTTPConnection, AWSHTTPConnectionPool, AWSHTTPSConnection, AWSHTTPSConnectionPool
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.httpsession import get_cert_path
from botocore.loaders import JSONFileLoader, Loader
from botocore.utils import get_environ_proxies
from urllib3.exceptions import InsecureRequestWarning, ReadTimeoutError

from wherry.backends.http.routes import HTTP_PROXIES, check_proxy
from wherry.backends.s3.body import Source
from wherry.backends.s3.listing import leave_out_what_cannot_be, timestamp_of
from wherry.backends.s3.options import DIRECTORY_BUCKET, ENDPOINT_VARIABLES, S3Options, is_amazons
from wherry.backends.s3.page_objects import take_objects
from wherry.backends.s3.sample import catch_samples
from wherry.backends.s3.sdk_errors import AnswerParsers, ask_for_code, making_credentials
from wherry.errors import ConfigError
from wherry.redact import register_secret
from wherry.store.options import check_endpoint, check_key

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from wherry.backends.s3.direct_requests import Direct

#: Those that have an endpoint of their own in what a client, or its credentials, asks for; and the folders of their models.
_SERVICES = frozenset({"s3", "sts", "oidc", "portal.sso", "signin"})
_FOLDERS = ("s3", "signin", "sso", "sso-oidc", "sts")
#: The requests that this backend makes, and those that botocore makes for them: it finds regions by HeadBucket.
OPERATIONS = frozenset(
    {
        *("AbortMultipartUpload", "CompleteMultipartUpload", "CreateMultipartUpload", "CreateSession", "DeleteObject"),
        *("CopyObject", "DeleteObjects", "GetObject", "HeadBucket", "HeadObject", "ListBuckets", "ListMultipartUploads"),
        *("ListObjectsV2", "ListParts", "PutObject", "UploadPart", "UploadPartCopy"),
    }
)
#: How botocore keeps its models.
_OPEN: dict[str, Callable[[str, str], IO[bytes]]] = {".json": cast("Any", open), ".json.gz": cast("Any", gzip.open)}
#: The environment of a running process does not change, and neither do keys from the storage options.
_FIXED_CREDENTIALS = frozenset({"explicit", "env"})


@dataclass
class Connection:
    """A client; whether making it anew may find newer credentials; whether its listings come in the order of keys."""

    client: S3Client
    is_renewable: bool
    lists_in_order: bool
    signs_payloads: bool
    #: All that are open, also those that urllib3's pools do not know any more.
    sockets: WeakSet[socket.socket]
    #: What the client signs with; None: nothing is signed.
    credentials: Credentials | None
    #: The file or folder of the authorities that it trusts; None: it takes any certificate.
    authorities: str | None
    #: Requests past this client; None where there are none, or as long as `direct_is_due`.
    direct: Direct | None = None
    direct_is_due: bool = True

    def close(self) -> None:
        """Close all connections, also one that an error has dropped and that only the garbage collector would find."""
        self.client.close()
        if self.direct is not None:
            self.direct.client.close()
        for one in list(self.sockets):
            if (descriptor := one.detach()) >= 0:  # close() would wait for the end of a response that reads from it
                os.close(descriptor)


def endpoint_of(options: S3Options) -> str:
    """Return where requests go: the option's address, or what botocore's session resolves.

    botocore tells it by a client only, which is made without credentials. Raises ConfigError for what is no address, and what
    botocore raises for wrong settings.
    """
    if options.endpoint_url is not None:
        return options.endpoint_url
    session = _session(options)
    region = _region(session, options) or "us-east-1"
    try:
        client = cast("Any", session).create_client("s3", region_name=region, config=Config(signature_version=UNSIGNED))
    except ValueError as error:
        for variable in ENDPOINT_VARIABLES:
            if address := os.environ.get(variable):
                check_endpoint(address, f"the variable {variable}")
        why = "an endpoint_url in the AWS config file is no address" if "@" in str(error) else error  # it may have a password
        raise ConfigError(f"no S3 client can be made: {why}") from None
    endpoint: str = client.meta.endpoint_url
    client.close()
    if is_amazons(endpoint):
        endpoint = os.environ.get(ENDPOINT_VARIABLES[-1]) or endpoint
    sources = (f"the variable {name}" for name in ENDPOINT_VARIABLES if os.environ.get(name) == endpoint)
    return check_endpoint(endpoint, next(sources, "endpoint_url of the AWS profile"))


def connect(options: S3Options, bucket: str, address: str | None = None, *, signs_payloads: bool = False) -> Connection:
    """Make a client: 50 ms and, the first time, the reading of botocore's model of the service.

    `address`: the result of endpoint_of(), if it is known. `signs_payloads`: put each body's SHA-256 into its signature. That
    reads it twice, and costs more than sending it; the CRC32C in a signed header does the same against all but malice. Few
    servers insist.
    """
    session = _session(options)
    parsers = AnswerParsers()
    parsers.set_parser_defaults(timestamp_parser=timestamp_of)
    session.register_component("response_parser_factory", parsers)
    address = address or endpoint_of(options)
    endpoint = options.endpoint_url or (None if is_amazons(address) else address)
    region = _region(session, options)
    section = session.get_scoped_config().get("s3")
    style = options.addressing_style or (section.get("addressing_style") if isinstance(section, dict) else None)
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
            "addressing_style": style or ("path" if endpoint else "auto"),
            "payload_signing_enabled": signs_payloads,
        },
    )
    if options.verify is False:  # said once by wherry itself
        warnings.filterwarnings("ignore", category=InsecureRequestWarning)
    credentials = _credentials(session, options)
    try:
        client: S3Client = cast("Any", session).create_client(
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
    address = client.meta.endpoint_url
    check_proxy(get_environ_proxies(address).get(address.partition(":")[0]), HTTP_PROXIES)
    authorities = _authorities(session, options)
    if address.startswith("https:") and authorities is not None and not os.path.exists(authorities):
        wrong = f"the authority's file {authorities!r}, of $AWS_CA_BUNDLE or the AWS profile, is not there: correct its name"
        raise ConfigError(wrong)
    catch_samples(client)
    client.meta.events.register_last("before-call.s3", _send_small_bodies_at_once)
    client.meta.events.register_last("before-call.s3.HeadBucket", _do_not_redirect)
    # Patterns go before names: else a handler of botocore, which looks for errors in good answers, reads the whole page.
    client.meta.events.register("before-parse.*.*", take_objects)
    for listing in ("ListObjectsV2", "ListMultipartUploads", "ListParts"):
        client.meta.events.register(f"before-parse.s3.{listing}", leave_out_what_cannot_be)
    sockets: WeakSet[socket.socket] = WeakSet()
    _watch_connections(client, options.read_timeout_s, sockets)
    return Connection(
        client,
        is_renewable=credentials is not None and credentials.method not in _FIXED_CREDENTIALS,
        lists_in_order=is_amazons(address) and not bucket.endswith(DIRECTORY_BUCKET),
        signs_payloads=signs_payloads,
        sockets=sockets,
        credentials=credentials,
        authorities=authorities,
    )


def _session(options: S3Options) -> botocore.session.Session:
    session = botocore.session.Session(profile=options.profile)
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    return session


def _region(session: botocore.session.Session, options: S3Options) -> str | None:
    return options.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")


def _credentials(session: botocore.session.Session, options: S3Options) -> Credentials | None:
    """Return the credentials to sign with, made now, so that a fault of theirs is told before anything is sent."""
    if options.anonymous:
        return None
    if options.aws_access_key_id is not None and options.aws_secret_access_key is not None:
        return Credentials(options.aws_access_key_id, options.aws_secret_access_key, options.aws_session_token)
    with making_credentials():
        roles = session.get_component("credential_provider").get_provider("assume-role")
        if hasattr(roles, "_prompter"):  # there is no public way
            roles._prompter = ask_for_code
        found: Credentials | None = session.get_credentials()
        keys = None if found is None else found.get_frozen_credentials()
    if found is not None and keys is not None:
        register_secret(keys)
        for name, text in keys._asdict().items():
            if isinstance(text, str):  # there need not be a token
                check_key(text, f"the {name} that botocore has found ({found.method})")
    return found


def _authorities(session: botocore.session.Session, options: S3Options) -> str | None:
    """The one that the client takes: the option's, the environment's or the profile's, else the one that botocore carries."""
    set_by_user = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    verify: Any = (set_by_user or True) if options.verify is True else options.verify
    return get_cert_path(verify) or None


@cache
def _models(folders: str | None) -> Loader:
    """One for all clients of a process, as each would take 50 ms; `folders` is the setting ``data_path``."""
    extra = [os.path.expanduser(os.path.expandvars(folder)) for folder in (folders or "").split(os.pathsep) if folder]
    return _Loader(extra_search_paths=extra, file_loader=_Models())


class _Loader(Loader):
    """A loader that does not look into the folders of some four hundred services."""

    def list_available_services(self, type_name: str) -> list[str]:
        """Those that it is asked for here."""
        return list(_FOLDERS)


class _Models(JSONFileLoader):
    """Reads the files of botocore's models, and keeps only what this backend and its credentials need.

    Of S3's own model that is a fifth: a client has a method for each operation of it.
    """

    def load_file(self, file_path: str) -> Any:
        """What the file has; None if there is none."""
        for ending, open_ in _OPEN.items():
            if os.path.isfile(file_path + ending):
                with open_(file_path + ending, "rb") as file:
                    model = json.load(file)
                if os.path.basename(file_path) == "service-2":
                    if model["metadata"].get("serviceId") == "S3":
                        model["operations"] = {name: one for name, one in model["operations"].items() if name in OPERATIONS}
                        model["shapes"] = _needed_shapes(model)
                    _forget_documentation(model)
                if os.path.basename(file_path) == "endpoints":
                    for partition in model["partitions"]:
                        services = partition["services"]
                        partition["services"] = {service: services[service] for service in _SERVICES & services.keys()}
                return model
        return None


def _needed_shapes(model: dict[str, Any]) -> dict[str, Any]:
    """Those of its operations, with all that they consist of, and those of all errors."""
    shapes: dict[str, Any] = model["shapes"]
    needed: dict[str, Any] = {}
    left: list[Any] = [*model["operations"].values(), *({"shape": name} for name in shapes if shapes[name].get("exception"))]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            name = part.get("shape")
            if isinstance(name, str) and name not in needed:
                needed[name] = shapes[name]
                left.append(shapes[name])
            left += part.values()
        elif isinstance(part, list):
            left += part
    return needed


def _forget_documentation(model: dict[str, Any]) -> None:
    left: list[Any] = [model]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if isinstance(part.get("documentation"), str):
                part["documentation"] = ""  # botocore counts on the key, here and there
            left += part.values()
        elif isinstance(part, list):
            left += part


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
