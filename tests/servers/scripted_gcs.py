"""Stores of Google Cloud Storage for tests, and servers that fail as scripted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from servers.gcs_server import GCSServer
from servers.way import WAY
from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c
from wherry.store import Part, StoredPart
from wherry.uri import StoreURI


def open_gcs(server: GCSServer, bucket: str | None = None, **options: object) -> GCSStore:
    return GCSStore(StoreURI("gs", bucket or server.bucket), {**server.options, **WAY, **options})


def verbs(key: str, path: Path) -> dict[str, Callable[[GCSStore], object]]:
    """Each call of the contract, on an object or an upload that is not there."""
    return {
        "put": lambda store: store.put_file(key, path),
        "get": lambda store: store.get_file(key, path),
        "head": lambda store: store.head(key),
        "list": lambda store: list(store.list(key)),
        "delete": lambda store: store.delete(key),
        "begin": lambda store: store.begin(key, 1),
        "put_part": lambda store: store.put_part(key, "0" * 32, path, Part(1, 0, 10, crc32c(b"some bytes"))),
        "list_parts": lambda store: store.list_parts(key, "0" * 32),
        "complete": lambda store: store.complete(key, "0" * 32, [StoredPart(1, 1, "1")]),
        "abort": lambda store: store.abort(key, "0" * 32),
        "list_uploads": lambda store: list(store.list_uploads(key)),
    }


VERBS = tuple(verbs("", Path()))


@dataclass
class Script:
    """A server that gives each request the next answer (the last one again and again), or none; and what it was asked."""

    answers: list[tuple[int, Mapping[str, str], bytes] | None]
    url: str = ""
    asked: list[tuple[str, str, str, bytes]] = field(default_factory=list)


@contextmanager
def scripted(*answers: tuple[int, Mapping[str, str], bytes] | None) -> Iterator[Script]:
    script, released = Script(list(answers)), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.asked.append((self.command, self.path, self.headers.get("Authorization", ""), body))
            answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            self.close_connection = True
            if answer is None:
                released.wait(60)
                return
            status, headers, text = answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), "Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_request(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield script
        finally:
            released.set()
            server.shutdown()
            thread.join()


def refusal(status: int, reason: str = "invalid", message: str = "the server's own words", **headers: str) -> Any:
    item = {"message": message, "domain": "global", "reason": reason}
    body = json.dumps({"error": {"code": status, "message": message, "errors": [item]}}).encode()
    return status, {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}, body


def anonymous(url: str, **options: object) -> GCSStore:
    return GCSStore(StoreURI("gs", "bucket"), {"endpoint_url": url, "anonymous": True, **WAY, **options})


def key_file(token_url: str) -> dict[str, str]:
    """A service account's key file, with a new key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "test@example.com", "private_key_id": "1"}
    return {**account, "private_key": pem.decode(), "token_uri": f"{token_url}/token"}


def issued(token: str) -> Any:
    body = json.dumps({"access_token": token, "expires_in": 3600, "token_type": "Bearer"}).encode()
    return 200, {"Content-Type": "application/json"}, body
