"""Which files of the folder are mirrored, and how. The name of a file decides, never its content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Literal, get_args

from wherry.errors import ConfigError
from wherry.store import TEMPORARY_MARK

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
