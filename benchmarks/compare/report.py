"""Tables and plots of what was measured. No figure of benchmarks/README.md or docs/performance.md is typed by hand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from plan import ANY_PEER, SOCKETS, TABLES, WHERRY, Goal
from results import Found, Result
from scripts import SCRIPTS, Told, judged as judged_cell

GIB = 2**30
MIB = 2**20


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """Median [min-max]."""
    low, middle, high = (scale * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:,.{digits}f} [{low:,.{digits}f}-{high:,.{digits}f}]"


def markdown(result: Result) -> str:
    """The table of one result, its goals, and the conditions it was taken under."""
    header, lines = figures_of(result)
    text = [f"### {result.title}", "", line_of(header), "|" + " --- |" * len(header), *map(line_of, lines)]
    failed = [row for row in result.rows if row.error]
    text += [line_of([row.name, f"not measured: {row.error}", *[""] * (len(header) - 2)]) for row in failed]
    goals = goals_of(result)
    if goals:
        text += ["", line_of(["goal", "found", ""]), "| --- | --- | --- |", *map(line_of, goals)]
    return "\n".join([*text, "", conditions(result), ""])


def markdown_of_script(told: Told) -> str:
    """The tables of a script, its goals, and the conditions."""
    text = []
    for table in told.tables:
        header = table["header"]
        text += [f"### {table['title']}", "", line_of(header), "|" + " --- |" * len(header), *map(line_of, table["rows"]), ""]
    if told.error:
        text += [f"### {told.script}", "", f"Not measured: {told.error}", ""]
    found = goals_of_script(told)
    if found:
        text += [line_of(["goal", "found", ""]), "| --- | --- | --- |", *map(line_of, found), ""]
    quiet = "quiet machine" if told.is_quiet else "**not quiet: other work went on when this began**"
    where = machine_of(told.machine) + sink_note(told.sink)
    return "\n".join([*text, f"{told.started}, commit {told.commit}, {where}; {quiet}.", ""])


def goals_of_script(told: Told) -> list[list[str]]:
    return [judged_cell(goal, told) for goal in SCRIPTS[told.script].goals]


def machine_of(at: dict[str, Any]) -> str:
    return f"{at['cores']} cores ({at['processor']}), {at['memory_gib']} GiB, kernel {at['kernel']}, Python {at['python']}"


def sink_note(language: str) -> str:
    return "" if language == "C" else f", sink in {language}: it takes more of the processors than that in C"


def line_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def figures_of(result: Result) -> tuple[list[str], list[list[str]]]:
    rows = sorted((row for row in result.rows if row.rounds and not row.error), key=lambda row: row.median("wall_s") or 0)
    if result.do == "many":
        header = ["client", "files/s", "call, ms a file", "CPU ms a file", "server's CPU ms a file", "memory, peak MiB"]
        per, digits, scale = float(result.n_files), 2, 1000.0
    else:
        header = ["client", "s", "call, s", "CPU s/GiB", "server's CPU s/GiB", "memory, peak MiB"]
        per, digits, scale = result.total_bytes / GIB, 2, 1.0
    lines = []
    for row in rows:
        speed = (
            spread([result.n_files / s for s in row.values("wall_s")], 1, 0)
            if result.do == "many"
            else spread(row.values("wall_s"))
        )
        call = spread(row.values("blocked_s"), scale / per if result.do == "many" else 1.0)
        cpu, server = (spread(row.values(name), scale / per, digits) for name in ("cpu_s", "server_cpu_s"))
        name = f"**{row.name}**" if row.is_ours and row.name != SOCKETS.name else row.name
        lines.append([name, speed, call, cpu, server, f"{(row.median('peak_bytes') or 0) / MIB:,.0f}"])
    return header, lines


def goals_of(result: Result) -> list[list[str]]:
    return [[told(goal), *judged(goal, result)] for goal in TABLES[result.table].goals]


def told(goal: Goal) -> str:
    of = "" if goal.of == WHERRY.name else f"{goal.of}: "
    if goal.figure == "speed":
        return f"{of}at least {goal.limit:g} x the speed of {goal.over}"
    return f"{of}at most {goal.limit:g} x the processor time of {goal.over}"


def judged(goal: Goal, result: Result) -> tuple[str, str]:
    ours = result.row(goal.of)
    figure = "wall_s" if goal.figure == "speed" else "cpu_s"
    peers = [row for row in result.rows if row.rounds and not row.error and not row.is_ours]
    others = (
        peers if goal.over == ANY_PEER else [row for row in result.rows if row.name == goal.over and row.rounds and not row.error]
    )
    if ours is None or not others:
        return "not measured", ""

    def median(row: Found) -> float:
        return statistics.median(row.values(figure))

    best = min(others, key=median)
    named = f" ({best.name})" if goal.over == ANY_PEER else ""
    if goal.figure == "speed":
        ratio = median(best) / median(ours)
        return f"{ratio:.2f} x{named}", "met" if ratio >= goal.limit else "**missed**"
    ratio = median(ours) / median(best)
    return f"{ratio:.2f} x{named}", "met" if ratio <= goal.limit else "**missed**"


def conditions(result: Result) -> str:
    n = max((len(row.rounds) for row in result.rows), default=0)
    loud, every = result.loud()
    quiet = (
        "quiet machine"
        if loud * 10 <= every
        else f"**not quiet: others took processor time beside {loud} of {every} measurements**"
    )
    where = machine_of(result.machine) + sink_note(result.sink)
    return f"{n} rounds, medians [min-max], {result.started}, commit {result.commit}, {where}; {quiet}."
