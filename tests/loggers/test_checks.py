"""Fields of configs that are numbers refuse what is none, in the words of all other wrong values."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from wherry.errors import ConfigError
from wherry.loggers import (
    BaseLoggerConfig,
    ConsoleConfig,
    FileConfig,
    InMemoryConfig,
    MLflowConfig,
    ProgressBarConfig,
    RunFolderConfig,
    TensorBoardConfig,
    WandbConfig,
)

CONFIGS: tuple[type[Any], ...] = (
    BaseLoggerConfig,
    ConsoleConfig,
    FileConfig,
    InMemoryConfig,
    MLflowConfig,
    ProgressBarConfig,
    RunFolderConfig,
    TensorBoardConfig,
    WandbConfig,
)
#: Their annotations are texts.
NUMBERS = [
    (config, field) for config in CONFIGS for field in dataclasses.fields(config) if re.match("int|float", str(field.type))
]


@pytest.mark.parametrize(("config", "field"), NUMBERS, ids=lambda one: getattr(one, "name", ""))
@pytest.mark.parametrize("value", ["a", "64", True, [1], float("nan"), -1])
def test_what_is_no_number_is_refused_by_the_name_of_its_field(config: Any, field: Any, value: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{config.__name__}.{field.name} is {value!r}: it must be")):
        config(**{field.name: value})


@pytest.mark.parametrize(("config", "field"), NUMBERS, ids=lambda one: getattr(one, "name", ""))
def test_none_is_taken_where_it_is_the_default_and_nowhere_else(config: Any, field: Any) -> None:
    if field.default is None:
        assert getattr(config(**{field.name: None}), field.name) is None
    else:
        with pytest.raises(ConfigError, match=f"{field.name} is None"):
            config(**{field.name: None})


def test_numbers_of_numpy_and_infinite_bounds_are_numbers() -> None:
    config = RunFolderConfig(n_histogram_bins=np.int64(8), max_pending_bytes=float("inf"))  # type: ignore[arg-type]
    assert (8, float("inf")) == (config.n_histogram_bins, config.max_pending_bytes)


@pytest.mark.parametrize("mode", ["foo", "", 1, True, ["online"]])
def test_an_unknown_mode_of_wandb_is_refused_with_the_known_ones(mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"WandbConfig.mode is .*'online', 'offline', 'shared', 'disabled'"):
        WandbConfig(mode=mode)


@pytest.mark.parametrize("mode", ["online", "offline", "shared", "disabled", None])
def test_the_known_modes_of_wandb_are_taken(mode: Any) -> None:
    assert mode == WandbConfig(mode=mode).mode


@pytest.mark.parametrize("options", [{"init_options": 5}, {"step_metric": 5}])
def test_other_fields_of_wandb_refuse_another_type_too(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"WandbConfig.{next(iter(options))} is 5"):
        WandbConfig(**options)
