"""docs/performance.md and the goals in benchmarks/README.md, from the results: no figure there is typed by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plan import TABLES
from report import goals_of, goals_of_script, line_of, markdown, markdown_of_script
from results import ROOT, Result, load
from scripts import LOOKING, SCRIPTS, Told, load_script

BEGIN, END = "<!-- written by compare.py --render -->", "<!-- end of what compare.py writes -->"
INTRODUCTION = """# Performance

wherry beside other clients of object stores, each with its best documented options, on one machine, in turns. `make bench-full`
measures all of this again, `make bench` a smaller one in some 200 seconds. [What each figure means, and what would make it
wrong](../benchmarks/README.md#beside-other-clients-compare). A table of clients says how many rounds it had, and is called quiet
if in nine of ten measurements others took less than 15 % of a core. Of enqueue, local, startup, training,
listing, sync and looking at runs it
is known only whether the machine was quiet when they began.

wherry's rows are the whole pipeline: a durable call, the upload, its verification, its acknowledgement. The others' are the
transfer alone. Bare Python sockets sign nothing and try nothing again: they are the floor, not a client. CPU and memory are of
all processes, the agent and the workers among them. "call" is how long the caller's thread is held up.
"""


#: Clients that have no row, and why.
ABSENT = """Composer's RemoteUploaderDownloader has no row: mosaicml 0.32.1 wants torch before 2.7.1 and torchvision, which the
environment of the others cannot have. Its design (a copy, a spawned worker, boto3's defaults) is a row of
the training table.
s3torchconnector takes no certificate authority of one's own, so it is not measured over TLS.
"""


#: What the goals of a script are headed by.
_KIND = {"training": "training", **dict.fromkeys((one.name for one in LOOKING), "looking at runs")}


def goals(results: list[Result], scripts: list[Told]) -> str:
    """All goals in one table."""
    found = [(result.title, cells) for result in results for cells in goals_of(result)]
    found += [(_KIND.get(told.script, "wherry alone"), cells) for told in scripts for cells in goals_of_script(told)]
    return "\n".join(
        [line_of(["table", "goal", "found", ""]), "| --- | --- | --- | --- |", *(line_of([a, *b]) for a, b in found)]
    )


def picture(name: str, title: str) -> str:
    path = f"images/performance-{name}"
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{path}-dark.svg">'
    shown = f'<picture>{dark}<img alt="{title}: the table below as bars" src="{path}-light.svg"></picture>'
    return f"{shown}\n\nAs PNG: [light]({path}-light.png), [dark]({path}-dark.png)."


def about(results: list[Result]) -> str:
    """What the clients' rows stand for, and their versions."""
    lines = [line_of(["client", "how", "versions"]), "| --- | --- | --- |"]
    told = set()
    for result in results:
        for row in result.rows:
            if row.about and row.name not in told:
                told.add(row.name)
                versions = ", ".join(f"{package} {version}" for package, version in row.versions.items())
                lines.append(line_of([row.name, " ".join(row.about.split()), versions]))
    return "\n".join(lines)


def between(path: Path, text: str) -> None:
    """Replace what stands between the two marks."""
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


def render(folder: Path, peers: Path) -> None:
    results = [load(folder / f"{name}.json") for name in TABLES if (folder / f"{name}.json").exists()]
    results = [result for result in results if any(row.rounds for row in result.rows)]
    scripts = [load_script(folder / f"{name}.json") for name in SCRIPTS if (folder / f"{name}.json").exists()]
    images = ROOT / "docs" / "images"
    plots = Path(__file__).with_name("plots.py")
    drawn = [str(folder / f"{name}.json") for name in (*(each.table for each in results), *(told.script for told in scripts))]
    subprocess.run([str(peers / "bin" / "python"), str(plots), str(images), *drawn], check=True)
    parts = [INTRODUCTION, "## Goals\n", goals(results, scripts), "\n## Tables\n"]
    for result in results:
        title, _, rest = markdown(result).partition("\n")
        parts.append(f"{title}\n\n{picture(result.table, result.title)}\n{rest}")
    for told in scripts:
        if (images / f"performance-{told.script}-light.svg").exists():
            parts.append(picture(told.script, told.script))
        parts.append(markdown_of_script(told))
    parts += ["## Limits\n", Path(__file__).with_name("limits.md").read_text()]
    parts += ["## Clients\n", about(results), "", ABSENT]
    (ROOT / "docs" / "performance.md").write_text("\n".join(parts))
    between(ROOT / "benchmarks" / "README.md", goals(results, scripts))
    print(f"docs/performance.md, benchmarks/README.md and docs/images have {len(drawn)} tables", file=sys.stderr)
