"""The proof of what the tests catch: each mutant differs by one thing, and each fault is a patch that applies."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tooling.proof import FAULTS, faults, mutants_of, touched_lines

MODULE = """LIMIT = 3


def is_small(number):
    if number < LIMIT and not number < 0:
        return number == 0 or True
    raise ValueError(
        "too large"
    )


QUERY = "SELECT a FROM t WHERE a = 1 AND b = 2"
"""


def kinds(module: str) -> list[str]:
    return [change.name.split()[1] for change in mutants_of("m.py", module)]


def test_each_kind_of_mutant_is_made() -> None:
    expected = {"and-or": 2, "comparison": 3, "dropped": 1, "not": 1, "off-by-one": 3, "return": 1, "sql": 2}
    assert expected == {kind: kinds(MODULE).count(kind) for kind in sorted(set(kinds(MODULE)))}


def test_a_mutant_can_be_parsed_and_is_another_program() -> None:
    for change in mutants_of("m.py", MODULE):
        assert ast.dump(ast.parse(MODULE)) != ast.dump(ast.parse(change.files["m.py"])), change.name


def test_names_of_mutants_differ() -> None:
    names = [change.name for change in mutants_of("m.py", MODULE)]
    assert len(names) == len(set(names))


def test_a_changed_line_stands_for_its_statement() -> None:
    assert {7, 8, 9} == touched_lines(MODULE, MODULE.replace("too large", "large"))
    assert {5} == touched_lines(MODULE, MODULE.replace("not number", "number"))
    assert {1} == touched_lines(MODULE, MODULE.replace("= 3", "= 4"))


def test_a_line_that_is_added_concerns_its_neighbours() -> None:
    assert {5, 6} == touched_lines(MODULE, MODULE.replace("        return", "        number += 1\n        return"))


def test_each_fault_is_a_patch_that_applies_to_this_code() -> None:
    root = FAULTS.parent.parent.parent
    changes = list(faults(root))
    assert sorted(patch.stem for patch in FAULTS.glob("*.patch")) == [change.name for change in changes]
    for change in changes:
        for name, text in change.files.items():
            assert (root / name).read_text() != text
            ast.parse(text)


def test_the_help_says_how_it_is_used() -> None:
    program = Path(__file__).parent / "proof.py"
    done = subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, check=True)
    assert "mutants --count 200" in done.stdout
