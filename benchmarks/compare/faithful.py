"""Whether a client does what its row says: once before it is measured, against a server that keeps everything, byte for byte."""

from __future__ import annotations

from pathlib import Path

from botocore.exceptions import ClientError as BotocoreError
from driver import ClientError, Driver, Row
from measure import MIB, make_file
from plan import SOCKETS, Table
from sinks import Target

#: Three parts of 16 MiB, the last of them short.
SIZE_BYTES = 40 * MIB + 12345
#: The sink keeps bodies of that size. For bare sockets, as SeaweedFS wants signatures, and for GCS.
SMALL_BYTES = 48 * 1024
FILES = 5


def check(row: Row, table: Table, target: Target, folder: Path, peers: Path) -> None:
    """Raise ClientError if what arrives differs from what was sent."""
    is_bare = row == SOCKETS
    is_small = is_bare or table.where == "gcs"
    with Driver(row, target, folder, peers) as driver:
        do, where = table.do, driver.folder
        if do == "many":
            source = where / "few"
            source.mkdir()
            files = [make_file(source / f"{n}", SMALL_BYTES if is_bare else table.size_bytes + n) for n in range(FILES)]
            driver.measure("many", source, f"check-{row.client}", 0)
            for file in files:
                compare(row, target, f"check-{row.client}/{file.name}", file)
        elif do == "up":
            source = make_file(where / "source", SMALL_BYTES if is_small else SIZE_BYTES)
            driver.measure("up", source, f"check-{row.client}", 0)
            compare(row, target, f"check-{row.client}{'-0' * is_bare}", source)
        elif not is_small:  # all that it fetches from the sink is compared anyway
            source, back = make_file(where / "source", SIZE_BYTES), where / "back"
            target.s3().upload_file(str(source), target.endpoint["bucket"], "check")
            driver.measure("down", back, "check", SIZE_BYTES)
            if back.read_bytes() != source.read_bytes():
                raise ClientError(f"{row.name} has fetched other bytes than the object has")


def compare(row: Row, target: Target, key: str, file: Path) -> None:
    try:
        found = target.s3().get_object(Bucket=target.endpoint["bucket"], Key=key)["Body"].read()
    except BotocoreError as error:
        raise ClientError(f"{row.name} says that it is done, and the store has no {key}") from error
    if found != file.read_bytes():
        raise ClientError(f"{row.name}: {len(found)} bytes in the store, {file.stat().st_size} in the file, or others")
