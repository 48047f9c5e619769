"""safe_name: readable where it can be, harmless always, and never the same for two keys."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from wherry.loggers.values.safe_name import safe_name

ODD_KEYS: tuple[object, ...] = (
    "",
    " ",
    ".",
    "..",
    "/",
    "//",
    "../../etc/passwd",
    "a/../b",
    "/absolute",
    "trailing/",
    "a//b",
    "a\\b",
    "a:b",
    "a?b",
    "a\0b",
    "line\nbreak",
    "tab\tin",
    ".hidden",
    "dot.",
    "space ",
    "x" * 300,
    "é" * 300,
    "a/" * 150,
    "\ud800",
    "e\u0301",
    "emoji \U0001f468\u200d\U0001f469",
    "a_b",
    "loss-deadbeef",
    "{braces}",
    "100%",
    7,
    None,
    ("a", 1),
    3.5,
)


@pytest.mark.parametrize("key", ["loss", "train/loss", "val/top 5", "größe/学习率", "lr-AdamW/group0", "layers.0.weight"])
def test_a_harmless_key_is_its_own_name(key: str) -> None:
    assert safe_name(key) == key


@pytest.mark.parametrize("key", ODD_KEYS, ids=lambda key: ascii(key)[:20])
def test_any_key_is_a_name_that_the_file_system_takes_and_that_stays_below_the_folder(key: object, tmp_path: Path) -> None:
    name = safe_name(key)
    path = tmp_path / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    assert path.resolve().is_relative_to(tmp_path.resolve())
    assert len(name.encode()) <= 200
    assert not set(name.split("/")) & {"", ".", ".."}
    assert not any(part.startswith(".") or part != part.strip() for part in name.split("/"))


def test_different_keys_have_different_names() -> None:
    keys = {str(key) for key in ODD_KEYS} | {safe_name(key) for key in ODD_KEYS} | {"x" * 301, "a/b", "a_b", "absolute"}
    for one, other in itertools.combinations(keys, 2):
        assert safe_name(one) != safe_name(other), (one, other)


def test_a_name_that_was_changed_says_so_and_is_always_the_same() -> None:
    assert safe_name("a:b") == safe_name("a:b")
    assert safe_name("a:b").startswith("a_b-")
    assert safe_name(7) == safe_name("7") == "7"


@pytest.mark.parametrize("max_bytes", [16, 17, 18, 40, 255])
def test_no_name_is_longer_than_asked_for(max_bytes: int) -> None:
    names = [safe_name(key, max_bytes) for key in (*ODD_KEYS, "ä" * 199, "abcdef/" * 20, "a" * max_bytes, "a" * (max_bytes + 1))]
    assert max(len(name.encode()) for name in names) <= max_bytes
    assert safe_name("a" * max_bytes, max_bytes) == "a" * max_bytes


def test_too_little_room_for_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_bytes is 5"):
        safe_name("a", 5)
