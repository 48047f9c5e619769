"""script(): the page's modules as one script, for a file that loads nothing; and the hash by which a policy allows it."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from pathlib import Path

from wherry.web import uplot

_STATIC = Path(__file__).parent.parent / "static"
#: In a report the view is what the command line has asked for, not the address.
_INSTEAD = {"view.js": "report_view.js"}
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w.]+)";$', re.MULTILINE)
_AGAIN = re.compile(r'^export (\{[^}]*\}) from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|const|class) (\w+)", re.MULTILINE)


def script() -> str:
    """UPlot with its licence, which must be there, and the charts of the page, each module in a scope of its own."""
    licence = (uplot.FOLDER / "LICENSE").read_text()
    code = (uplot.FOLDER / "uPlot.iife.min.js").read_text()
    modules: dict[str, str] = {}
    _add("report.js", modules)
    return f"/*! uPlot\n{licence}*/\n{code}\n" + "".join(modules.values())


def styles() -> str:
    """The styles of uPlot and of the page."""
    of_charts = (uplot.FOLDER / "uPlot.min.css").read_text() if uplot.is_there() else ""
    return of_charts + (_STATIC / "style.css").read_text()


def allowed(text: str) -> str:
    """The source of a content security policy that allows an element with this text (https://www.w3.org/TR/CSP3/#grammardef-hash-source)."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _add(name: str, modules: dict[str, str]) -> None:
    """Put a module behind those that it imports, as a function that returns what it exports."""
    if name in modules:
        return
    code = (_STATIC / name).read_text()
    for _, other in (*_IMPORT.findall(code), *_AGAIN.findall(code)):
        _add(_INSTEAD.get(other, other), modules)
    exported = [found for _, found in _EXPORT.findall(code)]
    for names, _ in _AGAIN.findall(code):
        exported += re.findall(r"\w+", names)
    code = _IMPORT.sub(lambda found: _taken(found[1], found[2]), code)
    code = _AGAIN.sub(lambda found: _taken(found[1], found[2]), code)
    code = _EXPORT.sub(r"\1 \2", code)
    if left := re.search(r"^(import|export)\b.*", code, re.MULTILINE):
        raise AssertionError(f"{name}: no rule for {left[0]!r}")
    modules[name] = f'const {_variable(name)} = (() => {{\n"use strict";\n{code}\nreturn {{ {", ".join(exported)} }};\n}})();\n'


def _taken(names: str, other: str) -> str:
    return f"const {names} = {_variable(_INSTEAD.get(other, other))};"


def _variable(name: str) -> str:
    return f"module_{name.removesuffix('.js')}"
