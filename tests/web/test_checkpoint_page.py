"""The page of checkpoints: which set is the best, the command that restores it, and the order of the table."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from checkpoint_sets import save_set, write_part
from command_line import CommandLine
from servers.real import S3Server
from servers.web_page import Page, log_of, page_of
from wherry.backends.local.store import LocalStore
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.store.registry import open_store
from wherry.uri import StoreURI, parse_uri

METRICS = {10: (0.5, 0.7, 3.0), 20: (0.2, 0.9, 1.0), 30: (0.3, 0.95, 2.0)}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"loss": 1.0}, 0)
    store = LocalStore(StoreURI("file", "", str(tmp_path).strip("/")), {})
    keys = RunKeys(f"{str(tmp_path / 'run').strip('/')}/checkpoints")
    for step, (loss, acc, norm) in METRICS.items():
        save_set(store, keys, step, world=2, metrics={"val/loss": loss, "val/acc": acc, "grad_norm": norm})
    write_part(store, keys, SetName("000000001", 40), rank=1, world=3)
    with page_of(tmp_path) as found:
        yield found


def shown(page: Page, sort: str = "") -> tuple[list[int], str, str]:
    """The steps in the order of the table, the step that is marked as the best, and the command that restores it."""
    text = page.get(f"/run?id=run&tab=checkpoints&sort={sort}").text
    rows = re.findall(r'<tr role="row" data-id="[^"]+".*?</tr>', text, re.DOTALL)
    steps = [int(found[1]) for row in rows if (found := re.search(r"step (\d+)", row))]
    (best,) = [step for step, row in zip(steps, rows, strict=True) if ">best</span>" in row]
    command = re.search(r'<p class="note">.*?data-copy="([^"]+)"', text, re.DOTALL)
    assert command is not None
    return steps, str(best), html.unescape(command[1])


@pytest.mark.parametrize(
    ("sort", "steps", "best", "which"),
    [
        ("", [40, 30, 20, 10], "20", "best:val/loss"),
        ("step", [10, 20, 30, 40], "20", "best:val/loss"),
        ("val/loss", [20, 30, 10, 40], "20", "best:val/loss"),
        ("-val/acc", [30, 20, 10, 40], "30", "best:val/acc:max"),
        ("grad_norm", [20, 30, 10, 40], "20", "best:grad_norm"),
        ("-grad_norm", [10, 30, 20, 40], "10", "best:grad_norm:max"),
    ],
)
def test_the_best_set_is_marked_by_the_metric_of_the_order(
    page: Page, sort: str, steps: list[int], best: str, which: str
) -> None:
    assert (steps, best) == shown(page, sort)[:2]
    assert shlex.split(shown(page, sort)[2])[-2:] == ["--which", which]


def test_the_command_restores_what_the_page_says(page: Page, tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    for sort, step in (("", 20), ("-val/acc", 30)):
        out, _ = line.run(*shlex.split(shown(page, sort)[2])[1:])
        assert f"_{step:012d}" in out


def test_a_damaged_set_is_not_the_best(page: Page, tmp_path: Path) -> None:
    (data,) = (tmp_path / "run/checkpoints/data").glob("*_000000000020/rank1*")
    data.write_bytes(b"x" * data.stat().st_size)
    CommandLine(tmp_path).run("checkpoints", "verify", tmp_path / "run", "--step", 20, expected=7)
    _, best, command = shown(page)
    assert ("30", "000000001_000000000030") == (best, shlex.split(command)[-1])


def test_a_command_has_no_control_character_though_names_have(tmp_path: Path) -> None:
    """In a terminal the end of a bracketed paste (https://invisible-island.net/xterm/xterm-paste64.html) would run the rest."""
    name, metric = "run\x1b[201~\ntouch it\n#'\\ \u202e", "val/loss\x1b[201~\n"
    with log_of(tmp_path / name) as log:
        log.log_metrics({"loss": 1.0}, 0)
    store = LocalStore(StoreURI("file", "", str(tmp_path).strip("/")), {})
    save_set(store, RunKeys(f"{str(tmp_path / name).strip('/')}/checkpoints"), 10, world=1, metrics={metric: 0.5})
    with page_of(tmp_path) as page:
        text = page.get(f"/run?id={quote(name)}&tab=checkpoints").text
    commands = [html.unescape(found) for found in re.findall(r'data-copy="([^"]+)"', text)]
    wanted = [f"best:{metric}", "000000001_000000000010"]
    assert [True, True] == [command.isprintable() for command in commands]
    for command, which in zip(commands, wanted, strict=True):
        words = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True).stdout
        assert ["wherry", "checkpoints", "restore", str(tmp_path / name), "restored-10", "--which", which, ""] == words.split(
            "\0"
        )


def test_the_command_names_the_options_of_the_page(
    tmp_path: Path, seaweedfs_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys, which are secret, come from the environment; that of the one who pastes need not name the server."""
    options = seaweedfs_server.options
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}"
    with closing(open_store(parse_uri(uri), options)) as store:
        save_set(store, RunKeys(f"{tmp_path.name}/run/checkpoints"), 10, world=1, metrics={"val/loss": 0.5})
    with page_of(uri, options=options) as page:
        text = page.get("/run?id=run&tab=checkpoints").text
    for name in ("aws_access_key_id", "aws_secret_access_key"):
        assert str(options[name]) not in text
        monkeypatch.setenv(name.upper(), str(options[name]))
    best, row = (html.unescape(found) for found in re.findall(r'data-copy="([^"]+)"', text))
    line = CommandLine(tmp_path)
    for command, target in ((best, "best"), (row, "row")):
        out, _ = line.run(*[target if word == "restored-10" else word for word in shlex.split(command)[1:]])
        assert "000000001_000000000010" in out
