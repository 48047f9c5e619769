"""The kind of each file of a mirrored folder, and which ones are refused because no object can have their name."""

from __future__ import annotations

import logging

from wherry.errors import ConfigError
from wherry.mirror.format.layout import FOLDER, key_for, segment_name
from wherry.mirror.format.rules import Kind, Rules
from wherry.uri import check_name

log = logging.getLogger("wherry.mirror")


class PathKinds:
    """Finds the kind of a path once and keeps it, so that a refused path is logged once."""

    def __init__(self, rules: Rules, writer: str, prefix: str) -> None:
        self._rules = rules
        self._writer = writer
        self._prefix = prefix
        self._kinds: dict[str, Kind] = {}
        #: Name in the store -> the path that has it.
        self._names: dict[str, str] = {}
        #: Path -> why it is not mirrored.
        self.refused: dict[str, str] = {}

    def kind(self, path: str) -> Kind:
        """The kind of the file with this path below the folder; "ignore" for a refused one."""
        if path not in self._kinds:
            self._kinds[path] = self._find_kind(path)
        return self._kinds[path]

    def _find_kind(self, path: str) -> Kind:
        if (kind := self._rules.kind(path)) == "ignore":
            return kind
        try:
            if path.partition("/")[0] == FOLDER:
                raise ConfigError(f"the folder {FOLDER} is the mirror's own in the store: give yours another name")
            name = check_name(path)
            # The whole key has to fit; one of a segment is the longest that the file will have.
            check_name(key_for(self._prefix, segment_name(self._writer, name, 1, 0, "zstd") if kind == "append" else name))
            if (other := self._names.setdefault(name, path)) != path:
                raise ConfigError(f"{other!r} has the same name but for its Unicode form, and is mirrored: rename one of them")
        except ConfigError as error:
            self.refused[path] = str(error)
            log.warning("%r is not mirrored: %s", path, error)
            return "ignore"
        return kind
