"""The AWS Common Runtime's S3 client."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from awscrt.auth import AwsCredentialsProvider, AwsSignedBodyValue, AwsSigningAlgorithm, AwsSigningConfig
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import ClientBootstrap, ClientTlsContext, DefaultHostResolver, EventLoopGroup, TlsContextOptions
from awscrt.s3 import S3ChecksumAlgorithm, S3ChecksumConfig, S3ChecksumLocation, S3Client, S3RequestTlsMode, S3RequestType

from clients.contract import PART_BYTES, Client, Endpoint

IN_FLIGHT = 64


class Crt(Client):
    """Parts of 16 MiB, CRC32C as a trailer, its own choice of connections for 10 Gbit/s, unsigned payload."""

    packages = ("awscrt",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        at = urlsplit(endpoint.url)
        loops = EventLoopGroup()
        bootstrap = ClientBootstrap(loops, DefaultHostResolver(loops))
        provider = AwsCredentialsProvider.new_static(endpoint.access_key, endpoint.secret_key)
        signing = AwsSigningConfig(
            algorithm=AwsSigningAlgorithm.V4,
            credentials_provider=provider,
            region=endpoint.region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=AwsSignedBodyValue.UNSIGNED_PAYLOAD,
        )
        tls: dict[str, Any] = {"tls_mode": S3RequestTlsMode.DISABLED}
        if at.scheme == "https":
            options = TlsContextOptions()
            options.override_default_trust_store_from_path(None, endpoint.ca_file)
            connection = ClientTlsContext(options).new_connection_options()
            tls = {"tls_mode": S3RequestTlsMode.ENABLED, "tls_connection_options": connection}
        self.host = at.netloc
        self.client = S3Client(
            bootstrap=bootstrap,
            region=endpoint.region,
            signing_config=signing,
            part_size=PART_BYTES,
            throughput_target_gbps=10,
            **tls,
        )

    def start(self, kind: Any, method: str, key: str, **options: Any) -> Future[Any]:
        headers = HttpHeaders([("host", self.host)])
        if "send_filepath" in options:
            headers.add("content-length", str(Path(options["send_filepath"]).stat().st_size))
        request = HttpRequest(method, f"/{self.endpoint.bucket}/{key}", headers)
        done: Future[Any] = self.client.make_request(request=request, type=kind, **options).finished_future
        return done

    def put(self, path: Path, key: str) -> Future[Any]:
        sums = S3ChecksumConfig(algorithm=S3ChecksumAlgorithm.CRC32C, location=S3ChecksumLocation.TRAILER)
        return self.start(S3RequestType.PUT_OBJECT, "PUT", key, send_filepath=str(path), checksum_config=sums)

    def up(self, path: Path, key: str) -> None:
        self.put(path, key).result()

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.start(S3RequestType.GET_OBJECT, "GET", key, recv_filepath=str(path)).result()

    def many(self, folder: Path, prefix: str) -> None:
        under_way: list[Future[Any]] = []
        for path in folder.iterdir():
            if len(under_way) == IN_FLIGHT:
                under_way.pop(0).result()
            under_way.append(self.put(path, f"{prefix}/{path.name}"))
        for each in under_way:
            each.result()


CLIENTS = {"awscrt": Crt}
