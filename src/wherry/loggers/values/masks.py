"""Masks: checks, and drawing over their images for viewers without masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wherry.loggers.values.encode import mask_palette
from wherry.loggers.values.size_limits import LAST_LABEL, check_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OPACITY = 0.5


def mask_overlay(image: NDArray[np.uint8], mask: NDArray[np.integer], labels: Mapping[int, str]) -> NDArray[np.uint8]:
    """The image (C, H, W), C of 1, 3 or 4, as RGB (3, H, W) with the labels of the mask (H, W) in half transparent colours.

    Label 0, usually the background, is not drawn unless `labels` names it.
    """
    import numpy as np

    colours = np.frombuffer(mask_palette(), np.uint8).reshape(256, 3).astype(np.float32)
    under = np.broadcast_to(image[:3], (3, *image.shape[1:])).astype(np.float32)
    over = np.moveaxis(colours[mask], -1, 0)
    is_drawn = np.ones(mask.shape, bool) if 0 in labels else mask != 0
    drawn = np.where(is_drawn, under * (1 - _OPACITY) + over * _OPACITY, under)
    return np.asarray(drawn.round(), np.uint8)


def mask_legend(labels: Mapping[int, str]) -> str:
    """The colour of each class in one line; empty without names."""
    colours = mask_palette()
    named = ((label, name, int(label) * 3) for label, name in labels.items() if 0 <= int(label) <= LAST_LABEL)
    return ", ".join(f"{label} {name}: #{colours[at : at + 3].hex()}" for label, name, at in named)


def masks_of(
    masks: Mapping[str, object] | None, class_labels: Mapping[int, str] | None, images: Sequence[NDArray[Any]], name: str
) -> tuple[dict[str, list[NDArray[np.integer]]], dict[int, str], ValueError | None]:
    """(the valid masks by name, the valid class labels, the error to raise for the others once the images were logged)."""
    found: dict[str, list[NDArray[np.integer]]] = {}
    labels: dict[int, str] = {}
    wrong: list[str] = []
    for key, value in (masks or {}).items():
        try:
            found[str(key)] = to_masks(value, images, f"{name}/{key}")
        except ValueError as error:  # noqa: PERF203  the image and the others are logged
            wrong.append(str(error))
    for label, text in (class_labels or {}).items():
        try:
            labels[int(label)] = str(text)
        except (ValueError, TypeError, OverflowError):  # noqa: PERF203
            if masks:  # without masks the labels are of no use anyway
                wrong.append(f"{name}: mask_class_labels names {label!r}, which is no whole number")
    if not wrong:
        return found, labels, None
    return found, labels, ValueError(f"{'; '.join(wrong)} (the images are logged without this)")


def to_masks(value: object, images: Sequence[NDArray[np.uint8]], name: str) -> list[NDArray[np.integer]]:
    """A mask for each image, from one mask, a batch of them, or a sequence; `name` is that of the image and of the mask.

    ValueError for other shapes, and for labels that are not whole numbers from 0 to 255, which all destinations accept.
    """
    from wherry.loggers.values.canonical import to_mask, to_numpy

    check_bytes(value, name)
    if isinstance(value, (list, tuple)) and len(value) > 0 and to_numpy(value[0]).ndim >= 2:
        masks = [to_numpy(mask) for mask in value]
    else:
        array = to_numpy(value)
        masks = [array] if array.ndim == 2 else list(array)
    if len(masks) != len(images):
        raise ValueError(f"{name}: {len(masks)} masks for {len(images)} images; give one mask for each image")
    return [to_mask(mask, name, *image.shape[1:]) for mask, image in zip(masks, images, strict=True)]
