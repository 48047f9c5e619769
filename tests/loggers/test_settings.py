"""What log_hyperparameters() takes, and what the router refuses at the call."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from omegaconf import OmegaConf

from wherry.loggers import Logger, LoggerDestination, State


class Keeping(LoggerDestination):
    def __init__(self) -> None:
        self.settings: list[object] = []

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        self.settings.append(hyperparameters)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.settings.append(metrics)


@dataclass
class Optimizer:
    lr: float = 0.1


@dataclass
class Settings:
    width: int = 3
    optimizer: Optimizer = field(default_factory=Optimizer)


PLAIN = {"width": 3, "optimizer": {"lr": 0.1}}


@pytest.mark.parametrize(
    "given",
    [
        PLAIN,
        Settings(),
        argparse.Namespace(width=3, optimizer=Optimizer()),
        OmegaConf.create(PLAIN),
        OmegaConf.structured(Settings),
    ],
    ids=["dict", "dataclass", "Namespace", "DictConfig", "structured"],
)
def test_settings_of_every_kind_arrive_as_the_same_dict_everywhere(given: object) -> None:
    one, other = Keeping(), Keeping()
    Logger(State("run"), [one, other]).log_hyperparameters(given)
    assert [PLAIN] == one.settings == other.settings
    assert type(one.settings[0]) is dict


def test_a_missing_setting_stays_its_mark_and_the_others_arrive() -> None:
    one = Keeping()
    config = OmegaConf.create({"path": "???", "model": {"width": 3, "depth": "???"}})
    Logger(State("run"), one).log_hyperparameters(config)
    Logger(State("run"), one).log_hyperparameters({"config": config})
    expected = {"path": "???", "model": {"width": 3, "depth": "???"}}
    assert [expected, {"config": expected}] == one.settings


@pytest.mark.parametrize("given", [None, [1], "lr=0.1", Settings])
def test_what_is_no_settings_is_refused_at_the_call(given: object) -> None:
    one = Keeping()
    with pytest.raises(TypeError, match="mapping, an OmegaConf DictConfig"):
        Logger(State("run"), one).log_hyperparameters(given)
    assert [] == one.settings


@pytest.mark.parametrize("given", [None, 0.5, [("loss", 0.5)]])
def test_what_is_no_figures_is_refused_at_the_call(given: object) -> None:
    one = Keeping()
    with pytest.raises(TypeError, match=r"log_metrics\(\) takes a mapping of names to numbers, and not "):
        Logger(State("run"), one).log_metrics(given)  # type: ignore[arg-type]
    assert [] == one.settings
