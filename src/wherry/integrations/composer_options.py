"""What Composer's ``bucket_uri`` and ``backend_kwargs`` mean in wherry: a URI, storage options and a configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from wherry.config import AgentConfig, Config, TransferConfig
from wherry.errors import ConfigError
from wherry.uri import hide_login

log = logging.getLogger("wherry")

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
#: boto3's TransferConfig -> ours.
_TRANSFER = {
    "multipart_threshold": "multipart_threshold_bytes",
    "multipart_chunksize": "part_size_bytes",
    "max_concurrency": "parts_in_flight",
    "max_bandwidth": "max_bytes_per_s",
}
#: How boto3 downloads and buffers, which wherry does in its own way.
_TRANSFER_IGNORED = ("use_threads", "num_download_attempts", "max_io_queue", "io_chunksize")
#: botocore's Config -> our options; how often it retries is our own affair.
_CLIENT = {
    "region_name": "region",
    "connect_timeout": "connect_timeout_s",
    "read_timeout": "read_timeout_s",
    "max_pool_connections": "max_connections",
}


@dataclass(frozen=True)
class Replaced:
    """The store of a RemoteUploaderDownloader. `scheme`, `bucket` and `backend_kwargs` are what Composer's own would have."""

    scheme: str
    bucket: str
    backend_kwargs: Mapping[str, Any] = field(repr=False)  # it may have keys and passwords
    uri: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    config: Config = field(default_factory=Config)


def replaced(bucket_uri: str, backend_kwargs: Mapping[str, Any], n_uploads: int, environ: Mapping[str, str]) -> Replaced:
    """Translate the arguments of Composer's RemoteUploaderDownloader. `backend_kwargs` is read and not changed.

    ConfigError for a scheme that has no equal here, and for arguments that are not known or cannot be kept.
    """
    if not isinstance(bucket_uri, str):
        raise ConfigError(f"bucket_uri is {bucket_uri!r}: give a text such as 's3://my-bucket'")
    if not isinstance(backend_kwargs, Mapping):
        raise ConfigError(f"backend_kwargs is a {type(backend_kwargs).__name__}: give a dict")
    parts = urlsplit(bucket_uri)
    scheme, bucket = parts.scheme, parts.netloc
    shown = f"{scheme}://{hide_login(scheme, bucket_uri.partition('://')[2])}" if "://" in bucket_uri else bucket_uri
    if scheme not in _READERS:
        known = ", ".join(f"{one}://" for one in _READERS)
        raise ConfigError(f"RemoteUploaderDownloader: {shown!r} has no equal here: use {known}, or an ObjectStoreLogger")
    if scheme != "sftp" and "@" in bucket:
        raise ConfigError(f"{shown!r} has a login before the bucket: leave it out and give keys in backend_kwargs")
    kwargs = dict(backend_kwargs)
    what = _BUCKETS[scheme]
    kwargs.setdefault(what, f"sftp://{bucket}" if scheme == "sftp" else bucket)
    if not isinstance(kwargs[what], str) or not kwargs[what].removeprefix("sftp://").strip("/"):
        raise ConfigError(
            f"{shown!r} names no {what}: write {scheme}://my-{what} (is a variable empty?), or backend_kwargs[{what!r}]"
        )
    if scheme != "sftp" and parts.path.strip("/"):
        log.warning(
            "%r: Composer does not use the path behind the bucket, nor does this: give backend_kwargs={'prefix': ...}", shown
        )
    given = _Given(scheme, dict(kwargs))
    transfer = given.take_renamed("transfer_config", _TRANSFER, ignored=_TRANSFER_IGNORED) if scheme == "s3" else {}
    uri, options = _READERS[scheme](given, environ)
    given.refuse_others()
    agent = AgentConfig(jobs_in_flight=max(AgentConfig.jobs_in_flight, n_uploads))
    config = Config(agent=agent, transfer=TransferConfig(**transfer), on_failure="raise")  # at the next batch, as Composer does
    bucket = bucket.rpartition("@")[2]
    return Replaced(scheme, bucket, kwargs, uri, {name: value for name, value in options.items() if value is not None}, config)


class _Given:
    """backend_kwargs, of which each is taken once."""

    def __init__(self, scheme: str, left: dict[str, Any]) -> None:
        self.scheme = scheme
        self._left = left

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def put(self, name: str, value: Any) -> None:
        self._left[name] = value

    def take_text(self, name: str, default: str = "") -> str:
        """Take a text; None is the default."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"backend_kwargs[{name!r}] is a {type(value).__name__}: give a text")
        return value or default

    def take_dict(self, name: str) -> dict[str, Any]:
        """Take a dict; None is an empty one."""
        value = self.take(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"backend_kwargs[{name!r}] is a {type(value).__name__}: give a dict")
        return dict(value or {})

    def take_renamed(self, name: str, names: Mapping[str, str], ignored: tuple[str, ...] = ()) -> dict[str, Any]:
        """Take a dict, with its keys as we call them."""
        given = {key: value for key, value in self.take_dict(name).items() if key not in ignored}
        if unknown := sorted(set(given) - set(names)):
            raise ConfigError(f"backend_kwargs[{name!r}] has {', '.join(unknown)}: known here are {', '.join(names)}")
        return {names[key]: value for key, value in given.items()}

    def refuse_others(self) -> None:
        if self._left:
            names = ", ".join(sorted(self._left))
            raise ConfigError(f"backend_kwargs of {self.scheme}:// has {names}, which has no equal here: leave it out")


def _s3(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    if acl := environ.get("S3_CANNED_ACL"):
        raise ConfigError(
            f"the environment variable S3_CANNED_ACL is {acl!r}, and wherry sends no ACLs: unset it, and give the bucket a "
            "policy or the object ownership BucketOwnerEnforced"
        )
    config = given.take_dict("client_config")
    style = config.pop("s3", None) or {}
    if not isinstance(style, Mapping) or set(style) - {"addressing_style"}:
        raise ConfigError("backend_kwargs['client_config']['s3'] may have addressing_style only: leave the rest out")
    if config.pop("signature_version", "s3v4") not in (None, "s3v4"):
        raise ConfigError("backend_kwargs['client_config']['signature_version'] can be 's3v4' only, which is the default")
    given.put("client_config", config)
    client = given.take_renamed("client_config", _CLIENT, ignored=("retries",))
    options: dict[str, object] = {**client, **style, "endpoint_url": given.take("endpoint_url")}
    if region := given.take("region_name"):
        options["region"] = region
    for name in _KEYS:
        options[name] = given.take(name)
    return _joined("s3", given.take_text("bucket"), given.take_text("prefix")), options


def _gs(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    if environ.get("GCS_KEY") and environ.get("GCS_SECRET"):  # Composer speaks S3 to Google then, and so do we
        options = {
            "endpoint_url": "https://storage.googleapis.com",
            "aws_access_key_id": environ["GCS_KEY"],
            "aws_secret_access_key": environ["GCS_SECRET"],
        }
        return _joined("s3", given.take_text("bucket"), given.take_text("prefix")), dict(options)
    return _joined("gs", given.take_text("bucket"), given.take_text("prefix")), {}


def _oci(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    return _joined("oci", given.take_text("bucket"), given.take_text("prefix")), {"config": environ.get("OCI_CONFIG_FILE")}


def _sftp(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    host = given.take_text("host")
    at = urlsplit(host if "://" in host else f"sftp://{host}")
    if not at.hostname:
        raise ConfigError("the sftp:// URI names no host: write sftp://host")
    environ_name = given.take_text("key_filename_environ", "COMPOSER_SFTP_KEY_FILE")
    # Each is taken also when the URI has it.
    port, username, password = given.take("port"), given.take("username"), given.take("password")
    options: dict[str, object] = {
        "port": at.port or port,
        "username": at.username or username,
        "password": at.password or password,
        "key_filename": given.take("key_filename") or environ.get(environ_name),
    }
    return f"sftp://{at.hostname}/{given.take_text('cwd') or at.path.strip('/')}".rstrip("/"), options


def _libcloud(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    provider, container = given.take_text("provider").lower(), given.take_text("container")
    provider_kwargs = given.take_dict("provider_kwargs")
    given.take("chunk_size")
    names = [given.take_text(f"{what}_environ") for what in ("key", "secret")]
    key, secret = (provider_kwargs.get(what) or environ.get(name) for what, name in zip(("key", "secret"), names, strict=True))
    if provider == "local":
        if not key:
            raise ConfigError(
                "libcloud's provider 'local' needs its folder: backend_kwargs={'provider_kwargs': {'key': '/folder'}}"
            )
        return os.path.join(key, container), {}
    if provider == "azure_blobs":
        return f"az://{container}", {"account_name": key, "account_key": secret}
    raise ConfigError(
        f"libcloud's provider {provider!r} has no equal here: use s3:// with backend_kwargs={{'endpoint_url': ...}}, gs:// or az://"
    )


def _joined(scheme: str, bucket: str, prefix: str) -> str:
    return f"{scheme}://{bucket.strip('/')}/{prefix.strip('/')}".rstrip("/")


_Reader = Callable[[_Given, Mapping[str, str]], tuple[str, dict[str, object]]]
_READERS: dict[str, _Reader] = {"s3": _s3, "gs": _gs, "oci": _oci, "sftp": _sftp, "libcloud": _libcloud}
#: The name of the argument that Composer fills from the URI.
_BUCKETS = {"s3": "bucket", "gs": "bucket", "oci": "bucket", "sftp": "host", "libcloud": "container"}
