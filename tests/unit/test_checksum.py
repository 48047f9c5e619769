from __future__ import annotations

import random
from pathlib import Path

import pytest

from wherry.checksum import BLOCK_BYTES, combine_crc32c, crc32c, crc32c_of_file, format_crc32c, parse_crc32c


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
    path.write_bytes(bytes(2 * BLOCK_BYTES + 1))
    calls: list[int] = []
    crc32c_of_file(path, stop=lambda: calls.append(1))
    assert len(calls) == 3


@pytest.mark.parametrize("crc", [0, 1, 0xE3069283, 0xFFFFFFFF])
def test_text_form_reads_back(crc: int) -> None:
    assert crc == parse_crc32c(format_crc32c(crc))
    assert len(format_crc32c(crc)) == 8


@pytest.mark.parametrize("text", ["", "123", "123456789", "notahex!", "zzzzzzzz"])
def test_other_text_is_no_checksum(text: str) -> None:
    assert parse_crc32c(text) is None
