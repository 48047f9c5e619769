"""Filters and orders of rows, as the command line and the page take them: ``lr<1e-3 and loss<2``, ``-val/loss``.

A filter is read by Python's own parser, and only what is in the table below is taken from what it finds; nothing is ever
evaluated as Python.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeGuard

from wherry.errors import ConfigError
from wherry.runs.records import KeySummary, RunRow

_MOST_CHARACTERS = 2000
_FIELDS = ("id", "name", "uri", "state", "attempt", "age_s", "heard_s", "lag_s", "size_bytes", "cost_per_day_usd", "trouble")
#: What may stand behind a metric's name.
_ASPECTS = ("last", "last_step", "min", "min_step", "max", "max_step", "n_points", "n_nan", "n_inf")
#: So many names are offered for one that nobody has.
_MOST_NEAR = 6
_ABSENT = object()


def _is_in(one: object, other: object) -> bool:
    """Whether it is one of several values, or a part of a text; `(8)` is the number 8, and means it alone."""
    if isinstance(one, str) and isinstance(other, str):
        return one in other
    several = other if isinstance(other, (list, tuple)) else (other,)
    return any(operator.eq(*_alike(one, each)) for each in several)


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: _is_in,
    ast.NotIn: lambda one, other: not _is_in(one, other),
}
_Value = Callable[[RunRow], object]
#: What other languages write, and what is written here.
_SPELLINGS = (
    (re.compile(r"(?<![=<>!])=(?!=)"), "= is written =="),
    (re.compile("~"), "~ is written 'part' in name"),
    (re.compile("&"), "& is written and"),
    (re.compile(r"\|"), "| is written or"),
    (re.compile("!(?!=)"), "! is written not"),
    (re.compile(r"\b(AND|OR|NOT|IN)\b"), "and, or, not, in are written small"),
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PLAIN = re.compile(r"[^\W\d]\w*([./][^\W\d]\w*)*")
_WORDS: dict[str, bool] = {"true": True, "false": False}
_REMEDY = "write comparisons such as lr<1e-3 and loss<2 or state=='live', and odd names as key('my loss')"


class Where:
    """A filter of rows. ConfigError for a text that is none, which names the bad part.

    Names are fields of a row (`state`, `age_s`), hyperparameters (`model.depth`) and metrics: `loss` is its last number,
    `loss.min`, `loss.max` and `loss.last_step` say what their names say. A name that a row lacks makes a comparison false.
    Other names are written ``key('my loss')``. ``in`` looks for one of several values, or for a part of a text. A text that is a
    number (YAML reads 1e-3 as one) is compared with numbers as that number::

        Where("lr < 1e-3 and val/loss.min < 2 and batch in (8, 16) and not state == 'lost'")
    """

    def __init__(self, text: str) -> None:
        self.text = text
        #: The names in it, in their order: what a table should show.
        self.names: list[str] = []
        if len(text) > _MOST_CHARACTERS:
            raise ConfigError(f"the filter has {len(text)} characters: at most {_MOST_CHARACTERS} are allowed")
        try:
            tree = ast.parse(text.strip(), mode="eval")
            self._test = self._condition(tree.body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ConfigError):
                raise
            at = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
            raise ConfigError(f"the filter {text!r} cannot be read{at}: {self._remedy()}") from None

    def __call__(self, row: RunRow) -> bool:
        """Whether the row passes."""
        return self._test(row)

    def _remedy(self) -> str:
        """How a part that another language would take is written here, else how filters are written."""
        bare = _QUOTED.sub("''", self.text)
        return "; ".join(words for spelling, words in _SPELLINGS if spelling.search(bare)) or _REMEDY

    def _refuse(self, node: ast.AST) -> ConfigError:
        part = ast.get_source_segment(self.text.strip(), node) or type(node).__name__
        return ConfigError(f"the filter {self.text!r} has the part {part!r}, which is none of a filter: {self._remedy()}")

    def _condition(self, node: ast.expr) -> Callable[[RunRow], bool]:
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self._condition(one) for one in values]
                which = all if isinstance(op, ast.And) else any
                return lambda row: which(part(row) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._condition(operand)
                return lambda row: not inner(row)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                values_ = [self._value(left), *map(self._right, ops, comparators)]
                tests = [_COMPARISONS.get(type(op)) for op in ops]
                known = [test for test in tests if test is not None]
                if len(known) < len(tests):
                    raise self._refuse(node)
                return lambda row: _holds(known, [value(row) for value in values_])
        raise self._refuse(node)

    def _right(self, op: ast.cmpop, node: ast.expr) -> _Value:
        """What stands behind an operator: behind `in` perhaps several values."""
        match op, node:
            case ast.In() | ast.NotIn(), ast.Tuple(elts=parts) | ast.List(elts=parts):
                several = [self._value(one) for one in parts]
                return lambda row: tuple(one(row) for one in several)
        return self._value(node)

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return lambda row: value
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
                signed = -number if isinstance(sign, ast.USub) else number
                return lambda row: signed
            case ast.Name(id="true" | "false" as word):
                return lambda row: _WORDS[word]
            case ast.Call(func=ast.Name(id="key"), args=[ast.Constant(value=str() as name)], keywords=[]):
                return self._named(name)
        if (name_ := _name(node)) is None:
            raise self._refuse(node)
        return self._named(name_)

    def _named(self, name: str) -> _Value:
        if name not in self.names:
            self.names.append(name)
        return lambda row: value_of(row, name)


def _name(node: ast.expr) -> str | None:
    """``val/loss.min``, which Python takes for a division and an attribute."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            left = _name(inner)
            return None if left is None else f"{left}.{name}"
        case ast.BinOp(op=ast.Div(), left=one, right=other):
            parts = _name(one), _name(other)
            return None if None in parts else "/".join(part for part in parts if part)
    return None


def _holds(tests: Iterable[Callable[[Any, Any], bool]], values: list[object]) -> bool:
    return all(_compared(test, *pair) for test, *pair in zip(tests, values, values[1:]))  # noqa: B905  one test fewer than values


def _compared(test: Callable[[Any, Any], bool], one: object, other: object) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return False
    try:
        return bool(test(*_alike(one, other)))
    except TypeError:  # a text and a number
        return False


def _alike(one: object, other: object) -> tuple[object, object]:
    """A text beside a number as a number, if it is one."""
    if isinstance(one, str) and isinstance(other, (int, float)):
        return _as_number(one), other
    if isinstance(one, (int, float)) and isinstance(other, str):
        return one, _as_number(other)
    return one, other


def _as_number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def notes_of(rows: Sequence[RunRow], names: Iterable[str]) -> list[str]:
    """What to say of names in a filter, an order or a table that no row has: they are misspelt, or texts without quotes."""
    left = list(dict.fromkeys(name for name in names if name not in _FIELDS)) if rows else []
    for row in rows:
        left = [name for name in left if value_of(row, name) is _ABSENT] if left else left
    if not left:
        return []
    known = {*_FIELDS, *(name for row in rows for name in (*flat(row.hparams), *row.metrics))}
    return [f"no run has {name!r}{_nearest(name, known)}; texts are written in quotes, as in state=='live'" for name in left]


def _nearest(name: str, known: Iterable[str]) -> str:
    """Names that it is the end of (`loss` of `train/loss`) come before those that are spelt alike."""
    known = sorted(known)
    ends = [one for one in known if re.split(r"[/.]", one)[-1] == name][:_MOST_NEAR]
    near = list(dict.fromkeys([*ends, *get_close_matches(name, known, n=3)]))[:_MOST_NEAR]
    if not near:
        return ": it is no column, hyperparameter or metric here"
    return f": the nearest {'name is' if len(near) == 1 else 'names are'} {', '.join(near)}"


def written(name: str) -> str:
    """The name as a filter takes it: ``val/loss``, ``key('my loss')``."""
    try:
        is_plain = _PLAIN.fullmatch(name) is not None and Where(f"{name}<1").names == [name]
    except ConfigError:  # `lambda`
        is_plain = False
    return name if is_plain else f"key({name!r})"


def flat(hparams: Mapping[str, object], above: str = "", depth: int = 0) -> dict[str, object]:
    """Hyperparameters by dotted names: ``model.depth``. Eight levels deep at most, what lies deeper stays as it is."""
    found: dict[str, object] = {}
    for name, value in hparams.items():
        if isinstance(value, Mapping) and value and depth < 8:
            found |= flat(value, f"{above}{name}.", depth + 1)
        else:
            found[f"{above}{name}"] = value
    return found


def value_of(row: RunRow, name: str) -> object:
    """What a name stands for in a row: a field of it, a hyperparameter, or a metric's last number; `ABSENT` if it has none."""
    if name in _FIELDS:
        value = getattr(row, name)
        return _ABSENT if value is None else value
    if (hparams := row.hparams) and (name.partition(".")[0] in hparams or name in hparams):
        found = hparams.get(name, _ABSENT)
        found = flat(hparams).get(name, _ABSENT) if found is _ABSENT or isinstance(found, Mapping) else found
        if found is not _ABSENT:
            return found
    return _metric(row.metrics, name)


def is_there(value: object) -> bool:
    """Whether value_of() has found something."""
    return value is not _ABSENT


def _metric(metrics: Mapping[str, KeySummary], name: str) -> object:
    found, aspect = metrics.get(name), "last"
    if found is None:
        name, _, aspect = name.rpartition(".")
        found = metrics.get(name) if aspect in _ASPECTS else None
    value = None if found is None else getattr(found, aspect)
    return _ABSENT if value is None else value


def sort_rows(rows: Iterable[RunRow], key: str) -> list[RunRow]:
    """By a name that `Where` knows; with a ``-`` before it the greatest first. Rows without it come last, in their order."""
    is_falling = key.startswith("-")
    name = key[1:] if is_falling else key
    if not name:
        raise ConfigError("the name to sort by is empty: give a hyperparameter, a metric or a column, such as -val/loss")
    valued = [(value_of(row, name), row) for row in rows]
    numbers = [(value, row) for value, row in valued if _is_number(value)]
    texts = [(str(value), row) for value, row in valued if is_there(value) and not _is_number(value)]
    numbers.sort(key=lambda one: one[0], reverse=is_falling)
    texts.sort(key=lambda one: one[0], reverse=is_falling)
    return [row for _, row in (*numbers, *texts)] + [row for value, row in valued if not is_there(value)]


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and value == value


def differing(rows: Iterable[RunRow]) -> list[str]:
    """The hyperparameters that are not the same in all rows, by their dotted names, in the order in which they are found."""
    flats = [flat(row.hparams) for row in rows if row.hparams]
    names = dict.fromkeys(name for one in flats for name in one)
    return [name for name in names if len({repr(one.get(name, _ABSENT)) for one in flats}) > 1]
