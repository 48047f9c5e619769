"""What Composer's ``bucket_uri`` and ``backend_kwargs`` mean in wherry: a URI, storage options and a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from wherry.config import AgentConfig, Config, TransferConfig
from wherry.errors import ConfigError

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
#: boto3's TransferConfig -> ours.
_TRANSFER = {
    "multipart_threshold": "multipart_threshold_bytes",
    "multipart_chunksize": "part_size_bytes",
    "max_concurrency": "parts_in_flight",
}
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
    backend_kwargs: Mapping[str, Any]
    uri: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    config: Config = field(default_factory=Config)


def replaced(bucket_uri: str, backend_kwargs: Mapping[str, Any], n_uploads: int, environ: Mapping[str, str]) -> Replaced:
    """Translate the arguments of Composer's RemoteUploaderDownloader. `backend_kwargs` is read and not changed.

    ConfigError for a scheme that has no equal here, and for arguments that are not known or cannot be kept.
    """
    parts = urlsplit(bucket_uri)
    scheme, bucket = parts.scheme, parts.netloc
    if scheme not in _READERS:
        known = ", ".join(f"{one}://" for one in _READERS)
        raise ConfigError(f"RemoteUploaderDownloader: {bucket_uri!r} has no equal here: use {known}, or an ObjectStoreLogger")
    kwargs = dict(backend_kwargs)
    kwargs.setdefault(_BUCKETS[scheme], f"sftp://{bucket}" if scheme == "sftp" else bucket)
    given = _Given(scheme, dict(kwargs))
    transfer = given.take_renamed("transfer_config", _TRANSFER) if scheme == "s3" else {}
    uri, options = _READERS[scheme](given, environ)
    given.refuse_others()
    agent = AgentConfig(jobs_in_flight=max(AgentConfig.jobs_in_flight, n_uploads))
    config = Config(agent=agent, transfer=TransferConfig(**transfer), on_failure="raise")  # at the next batch, as Composer does
    return Replaced(scheme, bucket, kwargs, uri, {name: value for name, value in options.items() if value is not None}, config)


class _Given:
    """backend_kwargs, of which each is taken once."""

    def __init__(self, scheme: str, left: dict[str, Any]) -> None:
        self.scheme = scheme
        self._left = left

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def take_renamed(self, name: str, names: Mapping[str, str], ignored: tuple[str, ...] = ()) -> dict[str, Any]:
        """Take a dict, with its keys as we call them."""
        given = {key: value for key, value in (self.take(name) or {}).items() if key not in ignored}
        if unknown := sorted(set(given) - set(names)):
            raise ConfigError(f"backend_kwargs[{name!r}] has {', '.join(unknown)}: known here are {', '.join(names)}")
        return {names[key]: value for key, value in given.items()}

    def refuse_others(self) -> None:
        if self._left:
            names = ", ".join(sorted(self._left))
            raise ConfigError(f"backend_kwargs of {self.scheme}:// has {names}, which has no equal here: leave it out")


def _s3(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    client = given.take_renamed("client_config", _CLIENT, ignored=("retries",))
    options: dict[str, object] = {**client, "endpoint_url": given.take("endpoint_url")}
    if region := given.take("region_name"):
        options["region"] = region
    for name in _KEYS:
        options[name] = given.take(name)
    return _joined("s3", given.take("bucket"), given.take("prefix", "")), options


def _gs(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    if environ.get("GCS_KEY") and environ.get("GCS_SECRET"):  # Composer speaks S3 to Google then, and so do we
        options = {
            "endpoint_url": "https://storage.googleapis.com",
            "aws_access_key_id": environ["GCS_KEY"],
            "aws_secret_access_key": environ["GCS_SECRET"],
        }
        return _joined("s3", given.take("bucket"), given.take("prefix", "")), dict(options)
    return _joined("gs", given.take("bucket"), given.take("prefix", "")), {}


def _oci(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    return _joined("oci", given.take("bucket"), given.take("prefix", "")), {"config": environ.get("OCI_CONFIG_FILE")}


def _sftp(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    host = given.take("host")
    at = urlsplit(host if "://" in host else f"sftp://{host}")
    options: dict[str, object] = {
        "port": at.port or given.take("port"),
        "username": at.username or given.take("username"),
        "password": at.password or given.take("password"),
        "key_filename": given.take("key_filename") or environ.get(given.take("key_filename_environ", "COMPOSER_SFTP_KEY_FILE")),
    }
    return f"sftp://{at.hostname}/{given.take('cwd', '') or at.path.strip('/')}".rstrip("/"), options


def _libcloud(given: _Given, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    provider, container = str(given.take("provider", "")), given.take("container")
    provider_kwargs = dict(given.take("provider_kwargs") or {})
    given.take("chunk_size")
    key, secret = (provider_kwargs.get(what) or environ.get(given.take(f"{what}_environ") or "") for what in ("key", "secret"))
    if provider.lower() == "local" and key:
        return os.path.join(key, container), {}
    if provider.lower() == "azure_blobs":
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
