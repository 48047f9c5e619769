"""docs/cli.md and --help name every command, option and exit code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from command_line import CommandLine
from wherry.cli.app import app
from wherry.cli.exit_codes import Exit

PAGE = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text()
_GROUP: Any = typer.main.get_command(app)


def _found(group: Any, above: str = "") -> dict[str, Any]:
    """Every command by the words that call it, those of groups, and the groups themselves, too."""
    found: dict[str, Any] = {}
    for name in group.commands:
        found[f"{above}{name}"] = one = group.get_command(None, name)
        if hasattr(one, "commands"):
            found |= _found(one, f"{above}{name} ")
    return found


COMMANDS = _found(_GROUP)


def _options(name: str) -> set[str]:
    """The long options of a command, as --help lists them."""
    return {option for one in COMMANDS[name].params for option in (*one.opts, *one.secondary_opts) if option.startswith("--")}


def _section(name: str) -> str:
    return PAGE.partition(f"\n## `wherry {name}`\n")[2].partition("\n## ")[0]


def test_every_command_has_a_section_and_no_other_is_there() -> None:
    assert sorted(COMMANDS) == sorted(re.findall(r"^## `wherry ([\w ]+)`$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_documented_and_exists(name: str) -> None:
    cells = re.findall(r"^\| (`-.*?) \|", _section(name), re.MULTILINE)
    documented = {option for cell in cells for option in re.findall(r"--[\w-]+", cell)}
    assert _options(name) - {"--help", "--quiet", "--verbose"} == documented


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_verb_takes_quiet_and_verbose(name: str) -> None:
    assert {"--quiet", "--verbose"} <= _options(name)


@pytest.mark.parametrize("name", sorted(_GROUP.verbs))
def test_the_list_of_verbs_says_the_first_line_of_their_help(name: str) -> None:
    assert (COMMANDS[name].help or "").partition("\n")[0] == _GROUP.verbs[name].summary


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("put --overwrit a b", "No such option: --overwrit. Did you mean '--overwrite'?"),
        ("mirror start --segment-byte=3 a b", "Did you mean '--segment-bytes'?"),
        ("checkpoints prune --dry-ru a", "Did you mean '--dry-run'?"),
        ("sync a b --dryrun", "No such option: --dryrun. Its equal is --dry-run."),
        ("sync a b --size-only", "No such option: --size-only. Files of one size"),
        ("ls --human-readable a", "Sizes have units as they are"),
        ("sync --recursive a b", "All below a folder is taken as it is"),
        ("cp a b --acl=public-read", "bucket's own policy"),
        ("ls --endpoint-url http://localhost a", "-o endpoint_url=URL"),
        ("--versoin", "Did you mean '--version'?"),
        ("put --debug a b", "It stands before the verb: wherry --debug put ..."),
        ("put --frobnicate a b", "No such option: --frobnicate\n"),
        ("puts", "Did you mean 'put'?"),
        ("upload a s3://b/", "No such command 'upload'. Did you mean 'put'?\n"),
        ("remove s3://b/a", "Did you mean 'rm'?\n"),
        ("get s3://b/a", "Missing argument 'DEST'"),
        ("cp -r a", "Missing argument 'DST'"),
        ("put a", "Missing argument 'URI'"),
        ("get", "Missing argument 'URI'"),
        ("put a s3://b/ --timeout -1", "Invalid value for '--timeout'"),
    ],
)
def test_a_slip_of_the_fingers_gets_what_was_meant(arguments: str, expected: str, line: CommandLine) -> None:
    assert expected in line.run(*arguments.split(), expected=2)[1]


def test_every_exit_code_is_documented() -> None:
    documented = dict(re.findall(r"^\| `(\d+)` \| (.*?) \|$", PAGE, re.MULTILINE))
    assert {str(code.value): code.meaning for code in Exit} == documented


@pytest.mark.parametrize("arguments", [(), *(tuple(name.split()) for name in sorted(COMMANDS))])
def test_help_fits_80_columns(arguments: tuple[str, ...], line: CommandLine) -> None:
    out, _ = line.run(*arguments, "--help")
    assert max(map(len, out.splitlines())) <= 80
    assert "<bool>" not in out, "a flag takes no value"
    if not arguments:
        assert all(f"{code.value:>3}  {code.meaning}" in out for code in Exit)
