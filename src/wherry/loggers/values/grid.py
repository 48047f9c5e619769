"""Several images, sounds or videos combined into one, for sinks that show one value at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wherry.loggers.values.canonical import to_audio, to_numpy, to_video
from wherry.loggers.values.size_limits import check_bytes

_T = TypeVar("_T")


def image_grid(images: Sequence[NDArray[np.uint8]], max_images: int | None = None, sep: int = 0) -> NDArray[np.uint8]:
    """Images, each (C,H,W), row by row in a grid (C,H',W') that is as square and full as possible.

    Each cell has the size of the largest image; free space and the `sep` pixels between cells are black. Grey, coloured and
    transparent images can be mixed.
    """
    (frame,) = video_grid_of([image[None] for image in spaced(images, max_images)], sep)
    return np.asarray(frame)


def video_grid(value: object, name: str, max_videos: int | None = None, sep: int = 0) -> NDArray[np.uint8]:
    """Videos in a grid as image_grid() makes it: (T,C,H',W'). `value` is (B,T,C,H,W), (B,T,H,W,C) or a sequence of videos."""
    videos = _items(value, name, "videos", "(B,T,C,H,W) or (B,T,H,W,C)", 5)
    return video_grid_of([to_video(video, name) for video in spaced(videos, max_videos)], sep)


def joined_audio(value: object, name: str, max_audios: int | None = None, n_silent: int = 0) -> NDArray[np.float32]:
    """Sounds one after another with `n_silent` samples between them: (T',). `value` is (B,T), (B,C,T), (B,T,C) or a sequence."""
    sounds = _items(value, name, "sounds", "(B,T), (B,C,T) or (B,T,C)", 2, 3)
    silence = np.zeros(n_silent, np.float32)
    parts: list[NDArray[np.float32]] = []
    for sound in spaced(sounds, max_audios):
        parts += [silence, to_audio(sound, name)]
    return np.concatenate(parts[1:])


def spaced(items: Sequence[_T], most: int | None) -> list[_T]:
    """At most `most` of the items, evenly spaced, with the first and the last."""
    if most is None or len(items) <= most:
        return list(items)
    if most < 1:
        raise ValueError(f"at most {most} of {len(items)} items cannot be shown; give a number from 1")
    return [items[round(at * (len(items) - 1) / max(1, most - 1))] for at in range(most)]


def video_grid_of(videos: Sequence[NDArray[np.uint8]], sep: int = 0) -> NDArray[np.uint8]:
    """Videos, each (T,C,H,W), in a grid; shorter ones repeat their last frame."""
    n_frames, n_channels, height, width = (max(sizes) for sizes in zip(*(video.shape for video in videos), strict=True))
    n_columns = _columns(len(videos), height + sep, width + sep)
    n_rows = math.ceil(len(videos) / n_columns)
    size = (n_rows * (height + sep) - sep, n_columns * (width + sep) - sep)
    grid = np.zeros((n_frames, n_channels, *size), np.uint8)
    for number, video in enumerate(videos):
        top, left = number // n_columns * (height + sep), number % n_columns * (width + sep)
        cell = grid[:, :, top : top + video.shape[2], left : left + video.shape[3]]
        held = video[np.minimum(np.arange(n_frames), len(video) - 1)]
        cell[:, : min(3, n_channels)] = held[:, :3]  # grey is repeated in all three channels
        if n_channels == 4:
            cell[:, 3] = held[:, 3] if video.shape[1] == 4 else 255
    return grid


def _columns(n: int, height: int, width: int) -> int:
    """The number of columns for which a grid of `n` cells is nearest to a square, with a penalty for empty cells."""

    def badness(n_columns: int) -> float:
        n_rows = math.ceil(n / n_columns)
        return abs(math.log(n_columns * width / (n_rows * height))) + math.log(n_columns * n_rows / n)

    return min(range(1, n + 1), key=badness)


def _items(value: object, name: str, kind: str, accepted: str, *n_dimensions: int) -> Sequence[Any]:
    """The items of a batch or sequence; at least one."""
    check_bytes(value, name)
    if isinstance(value, (list, tuple)) and value and to_numpy(value[0]).ndim >= min(n_dimensions) - 1:
        return value
    array = to_numpy(value)
    if array.ndim not in n_dimensions or len(array) == 0:
        raise ValueError(f"{name}: {kind} cannot have the shape {array.shape}; give {accepted}, or a sequence, of at least one")
    items: list[Any] = list(array)
    return items
