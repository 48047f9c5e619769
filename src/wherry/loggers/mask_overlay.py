"""Masks drawn over their images, for viewers that have no masks of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Distinct in hue and in brightness; label n has colour n, counted round.
_COLOURS = (
    "#808080",
    "#e6194b",
    "#3cb44b",
    "#4363d8",
    "#f58231",
    "#911eb4",
    "#42d4f4",
    "#ffe119",
    "#f032e6",
    "#469990",
    "#9a6324",
)
_OPACITY = 0.5


def mask_overlay(
    image: NDArray[np.uint8], mask: NDArray[np.integer], labels: Mapping[int, str] | None = None
) -> NDArray[np.uint8]:
    """The image (C, H, W), C of 1, 3 or 4, as RGB (3, H, W) with the labels of the mask (H, W) in half transparent colours.

    0 is left clear, as it mostly means nothing, unless `labels` names it.
    """
    import numpy as np

    colours = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in _COLOURS], np.float32)
    under = np.broadcast_to(image[:3], (3, *image.shape[1:])).astype(np.float32)
    over = np.moveaxis(colours[mask % len(_COLOURS)], -1, 0)
    is_drawn = np.ones(mask.shape, bool) if labels and 0 in labels else mask != 0
    drawn = np.where(is_drawn, under * (1 - _OPACITY) + over * _OPACITY, under)
    return np.asarray(drawn.round(), np.uint8)


def mask_legend(labels: Mapping[int, str] | None) -> str:
    """Which colour is which class, in one line; empty without names."""
    return ", ".join(f"{label} {name}: {_COLOURS[int(label) % len(_COLOURS)]}" for label, name in (labels or {}).items())


def to_masks(value: object, images: Sequence[NDArray[np.uint8]], name: str) -> list[NDArray[np.integer]]:
    """A mask for each image, from one mask, a batch of them, or a sequence."""
    from wherry.loggers.munge import to_mask, to_numpy

    is_sequence = isinstance(value, (list, tuple)) and len(value) > 0 and to_numpy(value[0]).ndim >= 2
    array = None if is_sequence else to_numpy(value)
    masks = list(value) if array is None else [array] if array.ndim == 2 else list(array)  # type: ignore[call-overload]
    if len(masks) != len(images):
        raise ValueError(f"{name}: {len(masks)} masks for {len(images)} images; give one mask for each image")
    return [to_mask(mask, name, *image.shape[1:]) for mask, image in zip(masks, images, strict=True)]
