"""The glob language, and the rules of --include and --exclude."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.cli.arguments import parse_target, reader
from wherry.cli.store_verbs.get_command import ignores_case, refuse_clashes
from wherry.cli.store_verbs.patterns import Rules, is_pattern, literal_start, matches, matches_folder_of
from wherry.cli.store_verbs.selection import Source
from wherry.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        ("*.pt", ["a.pt", ".pt"], ["a.pt.gz", "deep/a.pt", "A.PT"]),
        ("run/?.pt", ["run/a.pt"], ["run/ab.pt", "run/.pt", "run//.pt"]),
        ("run[12]/*", ["run1/a", "run2/.b"], ["run3/a", "run1/deep/a", "run1"]),
        ("run[!1]/a", ["run2/a"], ["run1/a", "run//a"]),
        ("**/*.pt", ["a.pt", "x/a.pt", "x/y/a.pt"], ["a.log", "a.pt/b"]),
        ("run/**", ["run/a", "run/x/a", "run"], ["run1/a"]),
        ("run/**/a", ["run/a", "run/x/y/a"], ["run/b", "a"]),
        ("**/**/**/a", ["a", "x/a"], ["b"]),
        ("[*]", ["*"], ["a"]),
        ("a[", ["a["], ["a"]),
    ],
)
def test_a_glob_takes_whole_names_and_a_star_stops_at_a_slash(pattern: str, taken: list[str], left: list[str]) -> None:
    assert taken == [name for name in [*taken, *left] if matches(pattern, name)]


def test_recursive_takes_what_is_below_a_folder_of_the_pattern() -> None:
    names = ["run1/a", "run1/x/a", "other/run1/a", "run1"]
    assert ["run1/a", "run1/x/a", "run1"] == [name for name in names if matches_folder_of("run*", name)]


def test_the_listing_begins_where_all_matches_begin() -> None:
    assert ["run/ep", "", "a/b", "a/"] == [literal_start(text) for text in ("run/ep*.pt", "*", "a/b", "a/[b]")]
    assert [True, True, True, False] == [is_pattern(text) for text in ("a*", "a?", "[", "a{b}")]


def test_rules_are_those_of_gitignore_and_exclude_wins(tmp_path: Path) -> None:
    names = ["a.pt", "logs/a.txt", "logs/keep.txt", "deep/logs/b.txt", "b.pt"]

    def taken(**rules: object) -> list[str]:
        return [name for name in names if Rules(**rules).take(name)]  # type: ignore[arg-type]

    assert names == taken()
    assert ["a.pt", "b.pt"] == taken(include=["*.pt"])
    assert ["a.pt"] == taken(include=["*.pt"], exclude=["b.*"])
    assert ["a.pt", "deep/logs/b.txt", "b.pt"] == taken(exclude=["/logs/"])
    assert ["a.pt", "b.pt", "logs/keep.txt"] == sorted(taken(exclude=["**/logs/*", "!keep.txt"]))
    (tmp_path / "rules").write_text("# ours\n*.txt\n\n")
    assert ["a.pt", "b.pt"] == taken(exclude_from=tmp_path / "rules")
    assert ["a.pt", "logs/keep.txt", "b.pt"] == taken(exclude_from=tmp_path / "rules", exclude=["!keep.txt"])


def test_unreadable_rules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Rules(include_from=tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        Rules(include_from=tmp_path)
    (tmp_path / "rules").write_bytes(b"*.pt\n\xff\n")
    with pytest.raises(ConfigError, match=r"--include-from .*byte 5 is no UTF-8"):
        Rules(include_from=tmp_path / "rules")
    with pytest.raises(ConfigError, match=r"--exclude: .*gitignore rule"):
        Rules(exclude=["!"])


@pytest.mark.parametrize("names", [("a/Model.pt", "a/model.pt"), ("A/x/1", "a/x/2")])
def test_names_that_differ_in_case_only_are_refused_where_the_folder_ignores_case(tmp_path: Path, names: tuple[str, str]) -> None:
    with reader(parse_target(f"{tmp_path}/bucket"), {}, tmp_path / "spool") as store:
        copies = [(Source(store, name, name, 1), tmp_path / "new" / name) for name in names]
    refuse_clashes(copies, overwrite=False, is_blind=lambda folder: False)
    with pytest.raises(ConfigError, match="differ in case only"):
        refuse_clashes(copies, overwrite=False, is_blind=lambda folder: True)
    (tmp_path / "probe").touch()
    assert (tmp_path / "PROBE").exists() == ignores_case(tmp_path / "not/there/yet")
    assert ["probe"] == [path.name for path in tmp_path.iterdir() if path.is_file()]


@pytest.mark.parametrize(
    ("exclude", "left", "entered"),
    [
        (["/locked/"], ["locked/"], ["a/locked/", "locked2/"]),
        (["lost+found", "*.tmp"], ["lost+found/", "a/lost+found/", "x.tmp/"], ["lost/"]),
        (["*", "!*.pt"], [], ["a/"]),
        (["!*.pt", "/locked/"], ["locked/"], ["a/"]),
        ([], [], ["a/"]),
    ],
)
def test_a_folder_is_left_out_if_no_later_rule_takes_anything_below_it(
    exclude: list[str], left: list[str], entered: list[str]
) -> None:
    rules = Rules(exclude=exclude)
    assert left == [name for name in [*left, *entered] if rules.leave_out(name)]
    assert [] == [name for name in left if rules.take(f"{name}deep/a.pt")]
