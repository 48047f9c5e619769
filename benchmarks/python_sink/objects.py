"""What the sink knows of the objects in it."""

from __future__ import annotations

import base64
import os
import random
import threading
from dataclasses import dataclass, field

from wherry.checksum import crc32c

#: Bodies of at most this size are kept. Of larger ones the size, the metadata and the checksum that was sent are.
SMALL_BYTES = 64 * 1024
PATTERN_BYTES = 8 * 2**20


@dataclass
class Stored:
    """An object, or an upload in parts or a session, whose key is "?" and its id."""

    key: str
    generation: int
    #: Of S3, as header lines; of GCS, as its description says it.
    metadata: list[str] = field(default_factory=list)
    custom: object = None
    size_bytes: int = 0
    body: bytes | None = None
    #: CRC32C in base64.
    crc: str | None = None


class Objects:
    """All objects by key, and how many bytes of bodies have come and gone. Look and change under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.all: dict[str, Stored] = {}
        self.n_received = self.n_sent = self._n_ids = 0
        self.pattern = random.Random(0).randbytes(PATTERN_BYTES)  # so that nothing can be compressed
        self.pattern_file = os.memfd_create("pattern")
        os.write(self.pattern_file, self.pattern)

    def new_id(self) -> int:
        with self.lock:
            self._n_ids += 1
            return self._n_ids

    def put(self, key: str) -> Stored:
        """A new object in the place of what was there."""
        with self.lock:
            self.all[key] = made = Stored(key, self.new_id())
            return made

    def find(self, key: str) -> Stored | None:
        """The object; one of pattern/N is made when it is asked for."""
        with self.lock:
            _, is_pattern, size = key.partition("/pattern/")
            if key not in self.all and is_pattern:
                made = self.put(key)
                made.size_bytes = left = int(size)
                crc = 0
                while left > 0:
                    crc = crc32c(self.pattern[:left], crc)
                    left -= PATTERN_BYTES
                made.crc = encode(crc)
            return self.all.get(key)

    def forget(self) -> None:
        """Drop all but the patterns."""
        with self.lock:
            self.all = {key: kept for key, kept in self.all.items() if "/pattern/" in key}

    def count(self, n_received: int = 0, n_sent: int = 0) -> None:
        with self.lock:
            self.n_received += n_received
            self.n_sent += n_sent


def encode(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def decode(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big")
