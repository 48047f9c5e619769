"""Requests for single objects, past botocore: its request path takes 3 to 5 ms of processor time, this one a tenth of one.

What botocore knows stays botocore's: it is asked to make one request of each kind, which is not sent, and every request here is
made after these samples. They show the server, the bucket's place in host or path, the region, the service and the way of
signing. Unless our signer signs a sample as botocore did, to the last character, no request of its kind is sent past botocore. So
what we do not know (SigV4A, directory buckets, access points of several regions, a plugin of the user's that adds headers for
requester-pays, SSE-C or KMS) goes by botocore.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timezone
from functools import cache, lru_cache
from hashlib import sha256
from time import strptime
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

from wherry.backends.http.client import Answer, Client, Request, head_of
from wherry.backends.http.routes import route_to
from wherry.backends.http.wire_errors import UnknownWay
from wherry.backends.s3.body import Source
from wherry.backends.s3.error_table import code_of, status_of
from wherry.backends.s3.sample import SAMPLE_KEY, sample_of
from wherry.backends.s3.signing import MOMENT, NO_BODY, UNSIGNED, Signer
from wherry.errors import PermanentError

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.credentials import Credentials
    from botocore.exceptions import ClientError

    from wherry.backends.s3.client import Connection
    from wherry.backends.s3.options import S3Options

log = logging.getLogger("wherry.s3")

_METHODS = {
    "put_object": "PUT",
    "upload_part": "PUT",
    "get_object": "GET",
    "head_object": "HEAD",
    "delete_object": "DELETE",
}
#: What is given to boto3's calls, and the header that says it. A request that is given anything else goes by botocore.
_HEADERS = {
    "ChecksumCRC32C": "x-amz-checksum-crc32c",
    "ChecksumMode": "x-amz-checksum-mode",
    "ContentMD5": "content-md5",
    "IfMatch": "if-match",
    "IfNoneMatch": "if-none-match",
    "Range": "range",
}
_QUERY = {"PartNumber": "partNumber", "UploadId": "uploadId"}  # in the order that signatures have
#: The headers of answers, and their names in what boto3's calls return.
_ANSWERS = {
    "content-range": "ContentRange",
    "content-encoding": "ContentEncoding",
    "content-type": "ContentType",
    "etag": "ETag",
    "x-amz-checksum-crc32": "ChecksumCRC32",
    "x-amz-checksum-crc32c": "ChecksumCRC32C",
    "x-amz-checksum-sha1": "ChecksumSHA1",
    "x-amz-checksum-sha256": "ChecksumSHA256",
    "x-amz-checksum-type": "ChecksumType",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-customer-algorithm": "SSECustomerAlgorithm",
    "x-amz-version-id": "VersionId",
}
_METADATA = "x-amz-meta-"
#: botocore knows how to go on after these, in another region.
_MOVED = (301, 302, 303, 307, 308)
_WRONG_REGION = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect")
_MOST_ERROR_BYTES = 256 * 1024
#: Signing takes runs of spaces for one, so they are not sent; neither is what could begin a line of its own.
_PLAIN = re.compile(r"[!-~]+(?: [!-~]+)*")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BREAKS = re.compile(r"[\r\n\0]")
_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^ ]*/[0-9]{8}/([^/ ]+)/([^/ ]+)/aws4_request, ")
#: What botocore's requests have besides what is signed.
_UNSIGNED_HEADERS = {
    *("amz-sdk-invocation-id", "amz-sdk-request", "authorization", "content-length", "expect", "host", "user-agent"),
    *("x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amzn-trace-id"),
}
_title = lru_cache(maxsize=256)(str.title)


@dataclass
class Direct:
    """Requests after a sample, or (see `early`) without one."""

    client: Client
    #: None: nothing is signed.
    signer: Signer | None
    host: str
    #: Of the path, up to the key.
    path: str
    user_agent: str
    #: Bodies may go unsigned: botocore would send them so, and either TLS protects them or the server takes them.
    takes_unsigned: Callable[[], bool]
    #: Whether botocore makes requests of this name as they are made here.
    is_alike: Callable[[str], bool]
    #: An unsigned body was denied, and the same body signed was not.
    must_sign: bool = False
    #: The server has named another address, or region: botocore finds the way, and a new sample shows it.
    is_moved: bool = False

    def ask(
        self, operation: str, key: str, body: Source | None, metadata: Mapping[str, str], given: Mapping[str, object]
    ) -> dict[str, Any] | None:
        """Make a request, by its name in boto3, and return what boto3 would; None: it is one for botocore.

        Raises ClientError for an answer that says no, WireError when there is none.
        """
        if not self.is_alike(operation) or (headers := _headers_of(metadata, given)) is None:
            return None
        query = "&".join([f"{name}={quote(str(given[asked]), safe='')}" for asked, name in _QUERY.items() if asked in given])
        answer = self._send(operation, key, query, headers, body, payload := self._payload_of(body))
        if answer.status < 300:
            return described(operation, answer)
        error = _error_of(operation, answer)
        if _has_moved(operation, error):
            self.is_moved = True
            return None
        if payload == UNSIGNED and body is not None and self.signer is not None and code_of(error) == "AccessDenied":
            # A rule of the bucket, or of a prefix in it, may demand signed bodies. Who lacks the right is denied twice.
            answer = self._send(operation, key, query, headers, body, sha256_of(body))
            if answer.status < 300:
                self.must_sign = True
                return described(operation, answer)
            error = _error_of(operation, answer)
        raise error

    def _payload_of(self, body: Source | None) -> str:
        """What the signature says of the body. The sum of a large one costs more than sending it."""
        if body is None:
            return NO_BODY
        is_unsigned = self.signer is None or (not self.must_sign and self.takes_unsigned())
        return UNSIGNED if is_unsigned else sha256_of(body)

    def put_request(self, key: str, body: Source, metadata: Mapping[str, str], given: Mapping[str, object]) -> Request | None:
        """What ask("put_object") would send first; None: it is one for botocore."""
        if not self.is_alike("put_object") or (headers := _headers_of(metadata, given)) is None:
            return None
        return self._request("put_object", key, "", headers, body, self._payload_of(body))

    def _send(
        self, operation: str, key: str, query: str, headers: Mapping[str, str], body: Source | None, payload: str
    ) -> Answer:
        return self.client.ask(self._request(operation, key, query, headers, body, payload))

    def _request(
        self, operation: str, key: str, query: str, headers: Mapping[str, str], body: Source | None, payload: str
    ) -> Request:
        method, path = _METHODS[operation], self.path + quote(key, safe="/~")
        headers = {"host": self.host, **headers}
        if self.signer is not None:
            headers = self.signer.sign(method, path, query, headers, payload)
        lines = [
            f"{method} {path}{'?' if query else ''}{query} HTTP/1.1",
            *[f"{_title(name)}: {headers[name]}" for name in headers],
        ]
        lines += [f"User-Agent: {self.user_agent}", "Accept-Encoding: identity"]
        if body is not None:
            lines.append(f"Content-Length: {body.size_bytes}")
        try:
            head = head_of(lines)
        except ValueError:  # which may say a letter of a session token
            words = "the request cannot be sent: a key or a token has a line break, or a letter that is not ASCII"
            raise PermanentError(words) from None
        return Request(method, head, b"" if body is None else body.content(), "if-none-match" not in headers)


def sha256_of(body: Source) -> str:
    """Of the bytes that the file has now."""
    digest = sha256()
    body.seek(0)
    while block := body.read():
        digest.update(block)
    return digest.hexdigest()


def _headers_of(metadata: Mapping[str, str], given: Mapping[str, object]) -> dict[str, str] | None:
    """The headers, by their names in lower case; None if botocore is to find out whether, and how, they can be sent."""
    if not given.keys() <= _HEADERS.keys() | _QUERY.keys():
        return None
    headers = {_HEADERS[name]: str(value) for name, value in given.items() if name in _HEADERS}
    headers |= {f"{_METADATA}{name.lower()}": text for name, text in metadata.items()}
    for name, text in headers.items():
        if not _NAME.fullmatch(name) or not _PLAIN.fullmatch(text):
            if _BREAKS.search(name) or _BREAKS.search(text):
                raise PermanentError(f"{name!r}: {text!r} cannot be sent: a header has no line breaks")
            return None
    return headers


def described(operation: str, answer: Answer) -> dict[str, Any]:
    """What boto3 returns for an answer."""
    headers = answer.headers
    found: dict[str, Any] = {_ANSWERS[name]: headers[name] for name in headers.keys() & _ANSWERS.keys()}
    if operation != "get_object":
        answer.read_all(_MOST_ERROR_BYTES)
    if operation in ("get_object", "head_object"):
        from email.utils import parsedate_to_datetime  # with all of email, which no upload needs

        found["Body"] = answer
        found["Metadata"] = {name[len(_METADATA) :]: text for name, text in headers.items() if name.startswith(_METADATA)}
        if "content-length" in headers:
            found["ContentLength"] = int(headers["content-length"])
        with suppress(ValueError, OverflowError, KeyError):  # nobody needs it
            found["LastModified"] = parsedate_to_datetime(headers["last-modified"]).astimezone(timezone.utc)
    return found


def _error_of(operation: str, answer: Answer) -> ClientError:
    """What boto3 raises for an answer, by botocore's own parser."""
    from botocore.awsrequest import HeadersDict
    from botocore.exceptions import ClientError

    body = answer.read_all(_MOST_ERROR_BYTES)
    parsed = _parser().parse({"status_code": answer.status, "headers": HeadersDict(answer.headers), "body": body}, None)
    return ClientError(parsed, operation)


def _has_moved(operation: str, error: ClientError) -> bool:
    status = status_of(error)
    return status in _MOVED or (status == 400 and (operation == "head_object" or code_of(error) in _WRONG_REGION))


@cache
def _parser() -> Any:
    from wherry.backends.s3.sdk_errors import AnswerParsers

    return AnswerParsers().create_parser("rest-xml")


def direct_of(
    connection: Connection, bucket: str, options: S3Options, takes_unsigned: Callable[[], bool], note: Callable[[], None]
) -> Direct:
    """Requests to this bucket, as botocore would make them. Raises UnknownWay, and what botocore raises when it can make none."""
    from botocore.utils import get_environ_proxies

    sample = sample_of(connection.client, bucket, "put_object")
    url, headers = urlsplit(sample.url), _headers_in(sample)
    if not url.path.endswith(f"/{SAMPLE_KEY}"):
        raise UnknownWay("the key is not at the end of the address")
    host = url.netloc.lower().removesuffix(":443" if url.scheme == "https" else ":80")
    is_unsigned = headers.get("x-amz-content-sha256", UNSIGNED) == UNSIGNED
    signer = _signer(connection.credentials, headers.get("authorization"))
    _check_alike(sample, "put_object", url, host, signer)

    @cache
    def is_alike(operation: str) -> bool:
        try:
            _check_alike(sample_of(connection.client, bucket, operation), operation, url, host, signer)
        except UnknownWay as reason:
            log.info("botocore makes all requests %s to s3://%s: %s", operation, bucket, reason)
            return False
        return True

    return Direct(
        Client(
            route_to(
                url,
                connection.authorities,
                get_environ_proxies(url.geturl()).get(url.scheme),
                options.connect_timeout_s,
                options.read_timeout_s,
            ),
            options.max_connections,
            note,
        ),
        signer,
        host,
        url.path.removesuffix(SAMPLE_KEY),
        headers["user-agent"],
        lambda: is_unsigned and (url.scheme == "https" or takes_unsigned()),
        is_alike,
    )


def _headers_in(sample: AWSPreparedRequest) -> dict[str, str]:
    texts: dict[str, Any] = {name.lower(): text for name, text in sample.headers.items()}
    return {name: text.decode("latin-1") if isinstance(text, bytes) else str(text) for name, text in texts.items()}


def _signer(credentials: Credentials | None, authorization: str | None) -> Signer | None:
    """What signs as a sample was signed; None if it was not."""
    if credentials is None and authorization is None:
        return None
    scope = _SCOPE.match(authorization or "")
    if credentials is None or scope is None:
        raise UnknownWay("requests are not signed by SigV4")
    return Signer(credentials.get_frozen_credentials, scope[1], scope[2])


def _check_alike(sample: AWSPreparedRequest, operation: str, expected: SplitResult, host: str, signer: Signer | None) -> None:
    """UnknownWay unless we would make this request as botocore has made it, for the address that is expected."""
    found, headers = urlsplit(sample.url), _headers_in(sample)
    query = "&".join(sorted(found.query.split("&")))
    is_for_parts = operation == "upload_part"
    if (sample.method, found[:3], query) != (
        _METHODS[operation],
        expected[:3],
        "partNumber=1&uploadId=id" if is_for_parts else "",
    ):
        raise UnknownWay("the address is another one, or has another query")
    if more := sorted(headers.keys() - _UNSIGNED_HEADERS):
        raise UnknownWay(f"there are more headers: {', '.join(more)}")
    if signer is not None:
        from calendar import timegm

        now_s = timegm(strptime(headers["x-amz-date"], MOMENT))
        signed = signer.sign(_METHODS[operation], found.path, query, {"host": host}, headers["x-amz-content-sha256"], now_s)
        if signed["authorization"] != headers.get("authorization"):
            raise UnknownWay("botocore signs other headers, or with other keys")
