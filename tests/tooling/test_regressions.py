"""``make regressions`` finds the tests that docs/faults.md names, and tells which of them fail."""

from __future__ import annotations

from tooling.proof import ROOT
from tooling.regressions import is_red, named, outcomes

DOC = """
`tests/a/test_b.py::test_not_in_a_table`

| kind | mechanism | tests |
| --- | --- | --- |
| one | `src/x.py` | `tests/a/test_b.py::test_c`, `tests/a/test_b.py::TestD::test_e` |
| two | `y.py` | all of `tests/f/test_g.py`; `tests/a/test_b.py::test_c` |
"""
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_c[1]"/>
<testcase classname="tests.a.test_b" name="test_c[2]"><failure/></testcase>
<testcase classname="tests.a.test_b.TestD" name="test_e"/>
<testcase classname="tests.a.test_b" name="test_c_too"><failure/></testcase>
<testcase classname="" name="tests.f.test_g"><error/></testcase>
</testsuite></testsuites>"""


def test_the_tests_are_those_in_the_rows_of_tables() -> None:
    assert ["tests/a/test_b.py::test_c", "tests/a/test_b.py::TestD::test_e", "tests/f/test_g.py"] == named(DOC)


def test_one_red_case_makes_a_name_red_and_a_name_that_did_not_run_is_told() -> None:
    failed = outcomes(REPORT)
    assert is_red("tests/a/test_b.py::test_c", failed)
    assert is_red("tests/a/test_b.py", failed)
    assert is_red("tests/a/test_b.py::TestD::test_e", failed) is False
    assert is_red("tests/f/test_g.py", failed), "it cannot be imported"
    assert is_red("tests/f/test_g.py::test_h", failed)
    assert is_red("tests/a/test_b.py::test_gone", failed) is None


def test_the_page_names_tests_that_are_there() -> None:
    for name in named((ROOT / "docs/faults.md").read_text()):
        path, *functions = name.split("::")
        text = (ROOT / path).read_text()
        for function in functions:
            assert f"def {function}(" in text or f"class {function}" in text, name
