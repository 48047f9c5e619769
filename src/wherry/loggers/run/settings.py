"""The settings of a run, in whatever kind of object its program keeps them, as a plain dict."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any


def config_as_dict(config: object) -> dict[str, Any]:
    """The settings of a run as a plain dict. `config`: an OmegaConf DictConfig, a mapping, a dataclass or an argparse Namespace.

    Nested ones become plain dicts, too. OmegaConf's interpolations are resolved; if one of a config cannot be resolved, all of
    that config stay as they are written. TypeError for anything else.
    """
    found = _plain(config)
    if not isinstance(found, dict):
        raise TypeError(f"a configuration is a mapping, an OmegaConf DictConfig or a dataclass, and not {type(config).__name__}")
    return found


def _plain(value: object) -> Any:
    # Where nothing has imported a module, nothing is of its kinds.
    omegaconf: Any = sys.modules.get("omegaconf")
    argparse: Any = sys.modules.get("argparse")
    if omegaconf is not None and isinstance(value, (omegaconf.DictConfig, omegaconf.ListConfig)):
        try:
            value = omegaconf.OmegaConf.to_container(value, resolve=True)
        except omegaconf.errors.OmegaConfBaseException:
            value = omegaconf.OmegaConf.to_container(value, resolve=False)
    if argparse is not None and isinstance(value, argparse.Namespace):
        value = vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)  # type: ignore[call-arg, attr-defined]
    return value
