"""Requests as botocore makes them, which are not sent: what our own requests are made after."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from types_boto3_s3 import S3Client

#: The key in the samples.
SAMPLE_KEY = "sample"
#: Requests by their names in boto3, and what they are given besides a bucket and a key.
_GIVEN: Mapping[str, Mapping[str, Any]] = {
    "put_object": {"Body": b""},
    "upload_part": {"Body": b"", "PartNumber": 1, "UploadId": "id"},
    "get_object": {},
    "head_object": {},
    "delete_object": {},
}
_this_thread = threading.local()


class _Sampled(Exception):
    """Ends botocore's call before it sends the request."""

    def __init__(self, request: AWSPreparedRequest) -> None:
        super().__init__()
        self.request = request


def catch_samples(client: S3Client) -> None:
    """Prepare a client for sample_of(), before anybody else calls it: handlers cannot be added while others are called."""
    for operation in _GIVEN:
        client.meta.events.register_first(f"before-send.s3.{client.meta.method_to_api_mapping[operation]}", _catch)


def _catch(request: AWSPreparedRequest, **_: object) -> None:
    if getattr(_this_thread, "samples", False):
        raise _Sampled(request)


def sample_of(client: S3Client, bucket: str, operation: str) -> AWSPreparedRequest:
    """A signed request, by its name in boto3, with no bytes in its body. Raises what botocore raises when it can make none."""
    _this_thread.samples = True
    try:
        getattr(client, operation)(Bucket=bucket, Key=SAMPLE_KEY, **_GIVEN[operation])
    except _Sampled as sampled:
        return sampled.request
    finally:
        _this_thread.samples = False
    raise AssertionError("botocore has sent the sample")
