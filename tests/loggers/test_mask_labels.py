"""Which labels masks may have: the same for every destination, and said at the call. W&B's and MLflow's are in tests/extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfevents import read_values
from wherry.loggers import InMemoryLogger, Logger, LoggerDestination, RunFolderLogger, State, TensorBoardLogger
from wherry.loggers.values.masks import mask_legend, to_masks

IMAGE = np.zeros((3, 4, 4), np.uint8)


def state_of() -> State:
    return State("run", rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0)


@pytest.fixture(params=["memory", "folder", "board"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> LoggerDestination:
    if request.param == "memory":
        return InMemoryLogger()
    return (RunFolderLogger if request.param == "folder" else TensorBoardLogger)(tmp_path, state=state_of())


def mask_of(label: float, kind: str = "int64") -> Any:
    mask = np.zeros((4, 4), kind)
    mask[1, 2] = label
    return mask


@pytest.mark.parametrize("label", [-1, -100, 256, 1000, 65_536, 2**40])
def test_every_destination_refuses_a_label_that_is_no_byte_at_the_call_and_logs_the_image(
    destination: LoggerDestination, tmp_path: Path, label: int
) -> None:
    with pytest.raises(ValueError, match=rf"^val/truth: .* 0 to 255, and this one has {label}; map an ignore label .* to 255"):
        destination.log_images(IMAGE, "val", step=0, masks={"fine": mask_of(1), "truth": mask_of(label)})
    destination.close(state_of(), None)  # type: ignore[arg-type]
    if isinstance(destination, InMemoryLogger):
        (kept,) = destination.images["val"]
        assert (1, ["fine"]) == (len(kept.value.images), list(kept.value.masks))
    elif isinstance(destination, TensorBoardLogger):
        assert {"val", "val/fine"} == {value.tag for _, value in read_values(tmp_path)}
    else:
        files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")}
        assert {"media/images/val/0.png", "media/masks/val/fine/0.png"} == files


@pytest.mark.parametrize("label", ["road", None])
def test_a_class_label_that_is_no_number_is_refused_and_the_images_and_masks_are_logged(
    destination: LoggerDestination, tmp_path: Path, label: Any
) -> None:
    with pytest.raises(ValueError, match=f"^val: mask_class_labels names {label!r}, which is no whole number .*are logged"):
        destination.log_images(IMAGE, "val", step=0, masks={"truth": mask_of(1)}, mask_class_labels={1: "car", label: "1"})
    destination.log_images(IMAGE, "plain", step=0, mask_class_labels={label: "1"})
    destination.close(state_of(), None)  # type: ignore[arg-type]
    if isinstance(destination, InMemoryLogger):
        assert ["val", "plain"] == list(destination.images)
        assert (["truth"], {1: "car"}) == (list((value := destination.images["val"][0].value).masks), value.mask_class_labels)
    elif isinstance(destination, TensorBoardLogger):
        assert {"val", "val/truth", "plain"} == {value.tag for _, value in read_values(tmp_path)}
    else:
        files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")}
        assert {"media/images/val/0.png", "media/masks/val/truth/0.png", "media/images/plain/0.png"} == files


def test_a_router_says_the_rule_of_masks_and_the_image_is_there(caplog: pytest.LogCaptureFixture) -> None:
    memory = InMemoryLogger()
    with Logger(state_of(), memory) as logger:
        logger.log_images(IMAGE, "val", masks={"truth": mask_of(-100)})
    assert 1 == len(memory.images["val"])
    (said,) = caplog.messages
    assert "whole numbers from 0 to 255, and this one has -100" in said
    assert "the images are logged without this" in said


@pytest.mark.parametrize("mask", [mask_of(255), mask_of(255, "uint8"), mask_of(1, "bool"), mask_of(255, "float32")])
def test_every_destination_takes_bytes_booleans_and_whole_floats(destination: LoggerDestination, mask: Any) -> None:
    destination.log_images(IMAGE, "val", masks={"truth": mask}, mask_class_labels={-100: "ignored", 255: "ignored", 1: "cat"})
    destination.close(state_of(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("label", "shown"), [(0.5, "0.5"), (np.nan, "nan"), (np.inf, "inf"), (-1.0, "-1.0"), (256.0, "256.0")])
def test_floats_that_are_no_labels_are_named(label: float, shown: str) -> None:
    with pytest.raises(ValueError, match=f"val/truth: .* has {shown}; map"):
        to_masks(mask_of(label, "float64"), [IMAGE], "val/truth")


@pytest.mark.parametrize("as_list", [True, False])
def test_each_mask_of_several_is_looked_at(as_list: bool) -> None:
    masks = [mask_of(1), mask_of(-1)]
    with pytest.raises(ValueError, match="has -1;"):
        to_masks(masks if as_list else np.stack(masks), [IMAGE, IMAGE], "val/truth")


@pytest.mark.large
def test_tensors_are_looked_at_too() -> None:
    import torch

    with pytest.raises(ValueError, match="has -100;"):
        to_masks(torch.from_numpy(mask_of(-100)), [IMAGE], "val/truth")
    (mask,) = to_masks([torch.from_numpy(mask_of(255)).to(torch.uint8)], [IMAGE], "val/truth")
    assert np.array_equal(mask_of(255), mask)


@pytest.mark.parametrize("mask", [np.zeros((4, 4), complex), np.full((4, 4), "a"), np.zeros((0, 4))])
def test_what_is_no_mask_at_all_is_still_said_to_be_none(mask: Any) -> None:
    with pytest.raises(ValueError, match=r"^val/truth: "):
        to_masks(mask, [IMAGE], "val/truth")


def test_the_legend_has_no_colour_for_what_no_mask_can_have() -> None:
    assert "1 cat: #800000" == mask_legend({-100: "ignored", 1: "cat", 300: "far"})
