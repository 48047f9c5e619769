from __future__ import annotations

import pytest

from wherry.errors import ConfigError
from wherry.store.name_templates import format_name

FIELDS: dict[str, str | int | float] = {"run_name": "wise-otter", "epoch": 3, "batch": 120, "rank": 0, "loss": 0.125}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("{run_name}/ep{epoch}-ba{batch}-rank{rank}.pt", "wise-otter/ep3-ba120-rank0.pt"),
        ("ep{epoch:04d}", "ep0003"),
        ("{loss:.2f}", "0.12"),
        ("{{literal}}-{rank}", "{literal}-0"),
        ("{run_name!r}", "'wise-otter'"),
        ("", ""),
    ],
)
def test_template_is_filled_as_python_formats(template: str, expected: str) -> None:
    assert expected == format_name(template, FIELDS)


def test_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        format_name("{step}", FIELDS)
    for word in ("step", *FIELDS):
        assert word in str(caught.value)


@pytest.mark.parametrize("template", ["{", "}", "{epoch:bad}", "{run_name.__class__}", "{run_name[0]}", "{}", "{0}"])
def test_a_template_reaches_nothing_but_its_fields(template: str) -> None:
    with pytest.raises(ConfigError):
        format_name(template, FIELDS)
