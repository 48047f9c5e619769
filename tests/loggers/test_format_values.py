"""The two formatters: one is Composer's to the letter, the other is strict JSON whatever it is given."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from datetime import date
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from large import of_torch
from wherry.loggers.values.text import format_json, format_log_data_value


class Plain:
    def __str__(self) -> str:
        return "plain"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


#: Value -> text, as Composer writes it since 0.6.
GOLDEN: list[tuple[object, str]] = [
    (None, "None"),
    ("a", '"a"'),
    ("", '""'),
    ('say "hi"\n', '"say "hi"\n"'),
    (1, "1"),
    (-3, "-3"),
    (True, "True"),
    (False, "False"),
    (0.5, "0.5000"),
    (1.0, "1.0000"),
    (3e-6, "0.0000"),
    (1e20, "100000000000000000000.0000"),
    (math.nan, "nan"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (np.float64(0.25), "0.2500"),
    (np.float32(0.25), "0.25"),
    (np.int64(3), "3"),
    (np.bool_(True), "True"),
    (np.array(0.25), "0.2500"),
    (np.array(7), "7"),
    (np.array([1, 2]), "[1, 2]"),
    (np.array([0.5, 0.25]), "[0.5000, 0.2500]"),
    ({}, "{ }"),
    ({"a": 1}, '{ "a": 1, }'),
    ({"a": 1, "b": "c"}, '{ "a": 1, "b": "c", }'),
    ({"a": {"b": [1.0, None, {}]}}, '{ "a": { "b": [1.0000, None, { }], }, }'),
    (OrderedDict(z=1, a=2), '{ "z": 1, "a": 2, }'),
    (MappingProxyType({"a": 1}), '{ "a": 1, }'),
    ({1: 2}, '{ "1": 2, }'),
    ([], "[]"),
    ((), "[]"),
    ([1, "a", 0.5], '[1, "a", 0.5000]'),
    ((x for x in (1, 2)), "[1, 2]"),
    ({7}, "[7]"),
    (range(3), "[0, 1, 2]"),
    (Plain(), "plain"),
    (1 + 2j, "(1+2j)"),
]
GOLDEN_OF_TORCH = [
    of_torch(lambda torch: torch.tensor(0.5), "0.5000"),
    of_torch(lambda torch: torch.tensor([[2]]), "2"),
    of_torch(lambda torch: torch.tensor(True), "True"),
    of_torch(lambda torch: torch.tensor(0.5, requires_grad=True), "0.5000"),
    of_torch(lambda torch: torch.tensor(0.5, dtype=torch.bfloat16), "0.5000"),
    of_torch(lambda torch: torch.zeros(2, 3), "Tensor of shape torch.Size([2, 3])"),
    of_torch(lambda torch: torch.zeros(0), "Tensor of shape torch.Size([0])"),
]


@pytest.mark.parametrize(("value", "text"), [*GOLDEN, *GOLDEN_OF_TORCH], ids=lambda value: type(value).__name__)
def test_composers_format_is_kept_to_the_letter(value: object, text: str) -> None:
    assert text == format_log_data_value(value)


#: Value -> what a JSON reader gets.
JSON: list[tuple[object, object]] = [
    (None, None),
    (True, True),
    (3, 3),
    (3e-6, 3e-6),
    (0.1 + 0.2, 0.3),
    (123456789.0, 123457000.0),
    (123456789, 123456789),
    (-0.0, -0.0),
    (1.7976931348623157e308, 1.79769e308),
    (math.nan, "NaN"),
    (math.inf, "Infinity"),
    (-math.inf, "-Infinity"),
    ('say "hi"\n', 'say "hi"\n'),
    ("h\u00fcbsch \u6f22 \U0001f6f6", "h\u00fcbsch \u6f22 \U0001f6f6"),
    ("half \ud83d", "half \ud83d"),
    (np.float32(0.1), 0.1),
    (np.int8(-3), -3),
    (np.bool_(False), False),
    (np.array(0.5), 0.5),
    (np.array(math.nan), "NaN"),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array(["a", "b"]), ["a", "b"]),
    (np.zeros((0, 3)), []),
    (np.zeros((100, 3), np.float32), "ndarray of shape (100, 3), float32"),
    ({}, {}),
    ({"a": {"b": [1.0, None]}}, {"a": {"b": [1.0, None]}}),
    ({1: 2, None: 3, ("a", 1): 4}, {"1": 2, "None": 3, "('a', 1)": 4}),
    (MappingProxyType({"a": {5}}), {"a": [5]}),
    ((x for x in (1, 2)), [1, 2]),
    (b"\x00a", "b'\\x00a'"),
    (Path("a/b"), "a/b"),
    (date(2026, 4, 1), "2026-04-01"),
    (1 + 2j, "(1+2j)"),
    (2**20_000, hex(2**20_000)),
    (Plain(), "plain"),
    (Broken(), "<Broken>"),
    ({"a": Broken(), Broken(): 1}, {"a": "<Broken>", "<Broken>": 1}),
]
JSON_OF_TORCH = [
    of_torch(lambda torch: torch.tensor([0.5, math.inf], requires_grad=True), [0.5, "Infinity"]),
    of_torch(lambda torch: torch.tensor(0.1, dtype=torch.bfloat16), 0.100098),
    of_torch(lambda torch: torch.zeros(9, 9), "Tensor of shape (9, 9), torch.float32"),
]


@pytest.mark.parametrize(("value", "read"), [*JSON, *JSON_OF_TORCH], ids=lambda value: type(value).__name__)
def test_anything_is_strict_json(value: object, read: object) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = format_json(value)
    assert "\n" not in text
    assert text.encode()
    assert read == json.loads(text, parse_constant=refuse)


def test_a_learning_rate_stays_what_it_is() -> None:
    assert format_json({"lr": 3e-6}) == '{"lr": 3e-06}'


@pytest.mark.parametrize(("digits", "text"), [(1, "0.3"), (3, "0.333"), (6, "0.333333"), (None, "0.3333333333333333")])
def test_the_digits_can_be_chosen(digits: int | None, text: str) -> None:
    assert text == format_json(1 / 3, significant_digits=digits)


def test_a_container_in_itself_ends() -> None:
    data: dict[str, object] = {"a": 1}
    data["self"] = [data, data]
    assert format_json(data) == '{"a": 1, "self": ["...", "..."]}'


def test_what_is_held_twice_is_written_twice() -> None:
    shared = [1]
    assert format_json([shared, shared]) == "[[1], [1]]"


def test_data_that_cannot_be_read_is_described() -> None:
    class Changing(dict[str, int]):
        def items(self) -> object:  # type: ignore[override]
            raise RuntimeError("dictionary changed size during iteration")

    assert json.loads(format_json(Changing(a=1))) == "{'a': 1}"
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    assert json.loads(format_json(deep)) == "<list>"
    while isinstance(deep, list):  # or its end would be as deep
        deep = deep.pop()
