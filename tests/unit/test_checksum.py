from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from wherry.checksum import (
    PIECE_BYTES,
    combine_crc32c,
    crc32c,
    crc32c_of_file,
    crc32cs_of_file,
    format_crc32c,
    parse_crc32c,
    parse_range_sums,
    range_sums,
)
from wherry.store import CRC32C_METADATA, RANGES_METADATA, TOKEN_METADATA


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value of CRC-32/ISCSI
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(data: bytes, expected: int) -> None:
    assert expected == crc32c(data)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (1000, 1), (1, 1000), (300_000, 1_000_003)])
def test_combined_parts_are_the_whole(sizes: tuple[int, int]) -> None:
    rng = random.Random(7)
    first, second = (rng.randbytes(size) for size in sizes)
    assert crc32c(first + second) == combine_crc32c(crc32c(first), crc32c(second), len(second))
    assert crc32c(first + second) == crc32c(second, crc32c(first))


def test_many_parts_combine_in_order() -> None:
    data = random.Random(8).randbytes(1_000_000)
    crc = 0
    for at in range(0, len(data), 70_001):
        piece = data[at : at + 70_001]
        crc = combine_crc32c(crc, crc32c(piece), len(piece))
    assert crc32c(data) == crc


def test_combining_needs_no_bytes_of_a_tebibyte() -> None:
    half = combine_crc32c(1, 0, 2**39)
    assert combine_crc32c(1, 0, 2**40) == combine_crc32c(half, 0, 2**39)


@pytest.mark.parametrize(("start", "end"), [(0, None), (0, 0), (10, None), (10, 600_000), (600_000, None), (0, 600_000)])
def test_file_and_bytes_agree(tmp_path: Path, start: int, end: int | None) -> None:
    data = random.Random(9).randbytes(600_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    assert crc32c(data[start:end]) == crc32c_of_file(path, start, end)


def test_short_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    with pytest.raises(EOFError, match="5 bytes before"):
        crc32c_of_file(path, 0, 10)


def test_stop_is_called_between_blocks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PIECE_BYTES))
    calls: list[int] = []
    crc32c_of_file(path, stop=lambda: calls.append(1))
    assert len(calls) >= 8  # a worker that is to end sums no whole piece first


@pytest.mark.parametrize("crc", [0, 1, 0xE3069283, 0xFFFFFFFF])
def test_text_form_reads_back(crc: int) -> None:
    assert crc == parse_crc32c(format_crc32c(crc))
    assert len(format_crc32c(crc)) == 8


@pytest.mark.parametrize("text", ["", "123", "123456789", "notahex!", "zzzzzzzz"])
def test_other_text_is_no_checksum(text: str) -> None:
    assert parse_crc32c(text) is None


# -- the sums of an object's ranges, in its metadata


MIB = 2**20


def sums_text(size_bytes: int, least_bytes: int = 16 * MIB) -> str | None:
    """Of an object of so many bytes, whose pieces have made-up sums."""
    return range_sums(range(-(-size_bytes // PIECE_BYTES)), PIECE_BYTES, size_bytes, least_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "range_bytes", "n_ranges"),
    [
        (16 * MIB + 1, 16 * MIB, 2),
        (200 * 10**6, 16 * MIB, 12),
        (256 * 16 * MIB, 16 * MIB, 256),
        (256 * 16 * MIB + 1, 32 * MIB, 129),  # would be 257 ranges
        (256 * 32 * MIB, 32 * MIB, 256),
        (500 * 10**9, 2048 * MIB, 233),
        (5 * 2**40, 32 * 1024 * MIB, 160),
    ],
)
def test_ranges_are_doubled_until_256_of_them_suffice(size_bytes: int, range_bytes: int, n_ranges: int) -> None:
    text = sums_text(size_bytes)
    assert text is not None
    found = parse_range_sums(text, size_bytes)
    assert found is not None
    assert (range_bytes, n_ranges) == (found[0], len(found[1]))


@pytest.mark.parametrize("size_bytes", [0, 1, 8 * MIB + 1, 16 * MIB])
def test_an_object_of_one_range_has_no_sums_of_ranges(size_bytes: int) -> None:
    assert sums_text(size_bytes) is None


def test_the_metadata_of_any_object_fits_in_the_2_kb_of_s3() -> None:
    """Amazon S3 User Guide, "Working with object metadata": the names and values of all of it, in UTF-8."""
    for size_bytes in (256 * 16 * MIB, 256 * 2**34):
        text = sums_text(size_bytes)
        assert text is not None
        assert text.isascii()
        assert len(text.partition(":")[2]) == 1366
        names_and_values = [TOKEN_METADATA, secrets.token_hex(16), CRC32C_METADATA, format_crc32c(0), RANGES_METADATA, text]
        assert sum(map(len, names_and_values)) <= 1500


@pytest.mark.parametrize("least_bytes", [1, 1000, 1001, 2000, 3500])
@pytest.mark.parametrize("size_bytes", [20_000, 20_001, 20_999])
def test_the_sums_of_ranges_are_those_of_their_bytes(tmp_path: Path, size_bytes: int, least_bytes: int) -> None:
    data = random.Random(10).randbytes(size_bytes)
    path = tmp_path / "file"
    path.write_bytes(data)
    pieces = crc32cs_of_file(path, 0, size_bytes, 1000)
    found = parse_range_sums(range_sums(pieces, 1000, size_bytes, least_bytes) or "", size_bytes)
    assert found is not None
    range_bytes, sums = found
    assert 0 == range_bytes % 1000
    assert 0 <= range_bytes - least_bytes < 1000
    assert [crc32c(data[at : at + range_bytes]) for at in range(0, size_bytes, range_bytes)] == list(sums)


GOOD = "10:AAAAAQAAAAI"  # the sums 1 and 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        ":AAAAAQAAAAI",
        "0:AAAAAQAAAAI",
        "010:AAAAAQAAAAI",
        "-10:AAAAAQAAAAI",
        "1" * 5000 + ":AAAAAQAAAAI",
        "10:",
        "10:AAAAAQAAAAI=",
        "10:AAAAAQAAAA",
        "10:AAAAAQAAAAIA",
        "10:AAAAAQ",
        "10:AAAA+QAAAAI",
        " 10:AAAAAQAAAAI",
        "10:AAAAAQAAAAI\n",
        "1:AAAAAQAAAAI",
        "100:AAAAAQAAAAI",
        "\u0661\u0660:AAAAAQAAAAI",  # digits, but not ours
    ],
)
def test_other_text_is_no_sums_of_ranges(text: str) -> None:
    assert (10, (1, 2)) == parse_range_sums(GOOD, 20)
    assert parse_range_sums(text, 20) is None


@pytest.mark.parametrize("size_bytes", [0, 10, 21, 5 * 2**40])
def test_sums_of_another_size_of_object_are_none(size_bytes: int) -> None:
    assert parse_range_sums(GOOD, size_bytes) is None


def test_a_view_of_bytes_has_their_checksum() -> None:
    """As stores hand blocks on; the library itself takes no memoryview."""
    assert crc32c(b"bcd") == crc32c(memoryview(b"abcde")[1:4])
