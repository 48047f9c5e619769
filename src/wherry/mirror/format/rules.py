"""Which files of the folder are mirrored, and how. The name of a file decides, never its content."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Literal, get_args

from wherry.errors import ConfigError
from wherry.mirror.format.layout import FOLDER, key_for, segment_name
from wherry.store import TEMPORARY_MARK
from wherry.uri import check_name

log = logging.getLogger("wherry.mirror")

#: append: only grows; sent as segments. replace: small and rewritten; its last version is sent. once: complete once it is closed
#: or renamed into place; sent whole. ignore: not mirrored.
Kind = Literal["append", "replace", "once", "ignore"]


@dataclass(frozen=True)
class Rule:
    """Files whose path below the folder, or whose name, matches the shell pattern are of this kind. ``*`` also matches slashes.

    Example: ``Rule("*.trace", "append")``, ``Rule("scratch/*", "ignore")``.
    """

    pattern: str
    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"the rule for {self.pattern!r} says {self.kind!r}: use one of {', '.join(get_args(Kind))}")
        if not isinstance(self.pattern, str) or not self.pattern or self.pattern.startswith("/"):
            raise ConfigError(
                f"the rule's pattern {self.pattern!r} is no pattern of a path below the folder, such as 'logs/*.log'"
            )


def _rules(kind: Kind, *patterns: str) -> tuple[Rule, ...]:
    return tuple(Rule(pattern, kind) for pattern in patterns)


#: The first rule that matches counts; what no rule matches is `once`.
DEFAULT_RULES: tuple[Rule, ...] = (
    # Names under which programs write what is not finished: ours, editors', rsync's and curl's, hidden ones, SQLite's helpers.
    *_rules("ignore", f"*{TEMPORARY_MARK}*", "*.tmp", "*.temp", "*.part", "*.partial", "*.swp", "*.swx", "*~", ".*", "*/.*"),
    *_rules("ignore", "*.lock", "*.db-wal", "*.db-shm", "*.db-journal", "__pycache__/*", "*/__pycache__/*"),
    *_rules("append", "*.log", "*.txt", "*.out", "*.err", "*.jsonl", "*.csv", "*.tsv", "*tfevents*", "*.wandb"),
    *_rules("replace", "*.json", "*.yaml", "*.yml"),
)


class Rules:
    """Finds the kind of a path; callers keep the answer with the file."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._compiled = [(re.compile(translate(rule.pattern)), rule) for rule in self._rules]
        self._matched: set[Rule] = set()

    def kind(self, path: str) -> Kind:
        """The kind of the file with this path below the folder."""
        name = path.rpartition("/")[2]
        for pattern, rule in self._compiled:
            if pattern.match(path) or pattern.match(name):
                self._matched.add(rule)
                return rule.kind
        return "once"

    def unmatched(self) -> tuple[Rule, ...]:
        """The rules that no file has matched so far, without the default ones: they may be misspelled."""
        return tuple(rule for rule in self._rules if rule not in self._matched and rule not in DEFAULT_RULES)


@dataclass(eq=False)
class PathKinds:
    """Finds the kind of a path once and keeps it, so that a path that no object can have as its name is logged once."""

    rules: Rules
    writer: str
    prefix: str
    #: Path -> why it is not mirrored.
    refused: dict[str, str] = field(default_factory=dict, init=False)
    _kinds: dict[str, Kind] = field(default_factory=dict, init=False)
    #: Name in the store -> the path that has it.
    _names: dict[str, str] = field(default_factory=dict, init=False)

    def kind(self, path: str) -> Kind:
        """The kind of the file with this path below the folder; "ignore" for a refused one."""
        if path not in self._kinds:
            self._kinds[path] = self._find_kind(path)
        return self._kinds[path]

    def _find_kind(self, path: str) -> Kind:
        if (kind := self.rules.kind(path)) == "ignore":
            return kind
        try:
            if path.partition("/")[0] == FOLDER:
                raise ConfigError(f"the folder {FOLDER} is the mirror's own in the store: give yours another name")
            name = check_name(path)
            # The whole key has to fit; one of a segment is the longest that the file will have.
            check_name(key_for(self.prefix, segment_name(self.writer, name, 1, 0, "zstd") if kind == "append" else name))
            if (other := self._names.setdefault(name, path)) != path:
                raise ConfigError(f"{other!r} has the same name but for its Unicode form, and is mirrored: rename one of them")
        except ConfigError as error:
            self.refused[path] = str(error)
            log.warning("%r is not mirrored: %s", path, error)
            return "ignore"
        return kind
