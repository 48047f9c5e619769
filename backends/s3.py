"""``s3://bucket/prefix`` on botocore's low-level calls: Amazon S3 and the many servers that speak its API.

One client a store, shared by all threads and made at the first call; no transfer manager, no retries inside the SDK. Options:

- `endpoint_url` (else AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, S3_ENDPOINT_URL, the profile's), `region`, `profile`,
  `addressing_style` ("path", "virtual", "auto"; default: "path" with an endpoint of one's own), `verify` (bool, or the file of a
  certificate authority), `connect_timeout_s`, `read_timeout_s`, `max_connections`;
- `anonymous`, or `aws_access_key_id`, `aws_secret_access_key`, `aws_session_token`; else the vendor's own chain (environment,
  profile, instance role);
- `conditional_writes=False` for a server that ignores If-None-Match: `if_absent` then looks first and writes second, so that of
  two writers at one moment both may succeed;
- `checksums=False` for a server that fails on checksum headers. One that only ignores them is found out by itself: what is not
  confirmed in an answer is never claimed.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import botocore.exceptions as sdk
import botocore.session
import google_crc32c
from botocore import UNSIGNED
from botocore.config import Config

from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
)
from wherry.store import CRC32C_METADATA, TEMPORARY_MARK, Capabilities, MultipartStore, ObjectMeta, Part, StoredPart
from wherry.uri import StoreURI

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_BLOCK_BYTES = 2**20
#: Up to this size a body is read at once: botocore then does without "Expect: 100-continue", a round trip.
_IN_MEMORY_BYTES = 2**20
#: Marks the ids of uploads whose parts the server checks: a later process must send their checksums too.
_CHECKED = "crc32c:"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True)
class _Options:
    """The storage options, checked. Secrets do not show in its repr, for it is never printed: see S3Store.__repr__."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing_style: str | None = None
    verify: bool | str = True
    #: A connection that is not made in ten seconds will not be; a minute without a byte is a dead one.
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    max_connections: int = 32
    anonymous: bool = False
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None
    aws_session_token: str | None = None
    conditional_writes: bool = True
    checksums: bool = True
