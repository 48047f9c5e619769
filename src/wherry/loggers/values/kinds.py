"""One record a kind of logged value: what a log call was given, checked, copied and in one form, for all destinations.

`of()` of a kind is called by the thread that logs. It raises ValueError for what is not of that kind, and copies the rest,
so that the caller may change it afterwards. What takes longer (the pixels of images, the frames of a video, files of them)
is computed by the first thread that asks for it, once. Shapes and what is accepted: see `canonical.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from wherry.loggers.values.deep_copy import deep_copy
from wherry.loggers.values.lazy import Lazy
from wherry.loggers.values.masks import masks_of
from wherry.loggers.values.tables import check_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wherry.loggers.values.canonical import HistogramData

#: The memory that a cell of a table takes, roughly.
_CELL_BYTES = 100


@dataclass(frozen=True, eq=False)
class Text:
    """A text."""

    kind: ClassVar[str] = "text"
    name: str
    text: str

    @classmethod
    def of(cls, text: object, name: str) -> Text:
        """Anything as its str()."""
        return cls(name, str(text))

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, roughly."""
        return len(self.text)


@dataclass(frozen=True, eq=False)
class Table:
    """A table: `rows` is n x len(columns), deep copies of what was logged."""

    kind: ClassVar[str] = "table"
    name: str
    columns: list[str]
    rows: list[list[object]]

    @classmethod
    def of(cls, columns: Sequence[object], rows: Sequence[Sequence[object]], name: str) -> Table:
        """ValueError for a row that is not as long as there are columns."""
        names = [str(column) for column in columns]
        return cls(name, names, deep_copy(check_table(names, rows, name)))

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, roughly."""
        return _CELL_BYTES * len(self.rows) * len(self.columns)


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one call; `masks` has one mask an image, (H,W) of whole numbers, under each mask's name."""

    kind: ClassVar[str] = "images"
    name: str
    #: (C,H,W) of each image, known before the images are computed.
    shapes: list[tuple[int, ...]]
    masks: dict[str, list[NDArray[np.integer]]]
    mask_class_labels: dict[int, str]
    use_table: bool
    size_bytes: int
    _images: Lazy[list[NDArray[np.uint8]]] = field(repr=False)

    @classmethod
    def of(
        cls,
        images: object,
        name: str,
        channels_last: bool,
        masks: Mapping[str, object] | None,
        mask_class_labels: Mapping[int, str] | None,
        use_table: bool,
    ) -> tuple[Images, ValueError | None]:
        """The images with the masks that fit, and the error to raise for the other masks once the images were logged."""
        from wherry.loggers.values.canonical import copy_images, to_images

        copies = copy_images(images, name, channels_last=channels_last or None)
        fitting, labels, wrong = masks_of(masks, mask_class_labels, copies, name)
        size_bytes = sum(one.nbytes for one in (*copies, *(mask for several in fitting.values() for mask in several)))
        shapes = [one.shape for one in copies]
        made = Lazy(partial(to_images, copies, name))
        return cls(name, shapes, fitting, labels, use_table, size_bytes, made), wrong

    @property
    def images(self) -> list[NDArray[np.uint8]]:
        """The images, (C,H,W) each, with C of 1, 3 or 4."""
        return self._images()


@dataclass(frozen=True, eq=False)
class Histogram:
    """The values of an array of any shape."""

    kind: ClassVar[str] = "histogram"
    name: str
    values: NDArray[Any]

    @classmethod
    def of(cls, values: object, name: str) -> Histogram:
        """ValueError for what holds no numbers."""
        from wherry.loggers.values.canonical import to_values

        return cls(name, to_values(values, name))

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""
        return self.values.nbytes

    def data(self, n_bins: int = 64) -> HistogramData:
        """How the finite values are distributed."""
        from wherry.loggers.values.canonical import to_histogram

        return to_histogram(self.values, self.name, n_bins)

    def record(self, n_bins: int = 64) -> dict[str, object]:
        """The same for JSON: `HistogramData`'s fields, its two arrays as lists at the end."""
        record = dict(vars(self.data(n_bins)))
        for name in ("edges", "counts"):
            record[name] = record.pop(name).tolist()
        return record


@dataclass(frozen=True, eq=False)
class Audio:
    """A sound of one channel."""

    kind: ClassVar[str] = "audio"
    name: str
    sample_rate_hz: int
    size_bytes: int
    _samples: Lazy[NDArray[np.float32]] = field(repr=False)

    @classmethod
    def of(cls, audio: object, name: str, sample_rate_hz: float) -> Audio:
        """ValueError for another shape, or a rate that is not above 0."""
        from wherry.loggers.values.canonical import copy_audio, to_audio

        _check_rate(sample_rate_hz, f"{name}: sample_rate_hz")
        copy = copy_audio(audio, name)
        return cls(name, int(sample_rate_hz), copy.nbytes, Lazy(partial(to_audio, copy, name)))

    @property
    def samples(self) -> NDArray[np.float32]:
        """The samples, (T,) within -1..1."""
        return self._samples()


@dataclass(frozen=True, eq=False)
class Video:
    """A video."""

    kind: ClassVar[str] = "video"
    name: str
    #: (T,C,H,W), known before the frames are computed.
    shape: tuple[int, ...]
    frames_per_s: float
    size_bytes: int
    _frames: Lazy[NDArray[np.uint8]] = field(repr=False)

    @classmethod
    def of(cls, video: object, name: str, frames_per_s: float) -> Video:
        """ValueError for another shape, or a rate that is not above 0."""
        from wherry.loggers.values.canonical import copy_video, to_video

        _check_rate(frames_per_s, f"{name}: frames_per_s")
        copy = copy_video(video, name)
        return cls(name, copy.shape, frames_per_s, copy.nbytes, Lazy(partial(to_video, copy, name)))

    @property
    def frames(self) -> NDArray[np.uint8]:
        """The frames, (T,C,H,W) with C of 1, 3 or 4."""
        return self._frames()


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Clouds of points, (B,N,3)."""

    kind: ClassVar[str] = "point_cloud"
    name: str
    clouds: NDArray[np.float32]

    @classmethod
    def of(cls, points: object, name: str, max_points: int | None = None) -> PointCloud:
        """ValueError for a shape without a dimension of 3. Of more than `max_points` a random subset is left."""
        from wherry.loggers.values.canonical import to_point_cloud

        return cls(name, to_point_cloud(points, name, max_points=max_points))

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""
        return self.clouds.nbytes


Value: TypeAlias = Text | Table | Images | Histogram | Audio | Video | PointCloud


def _check_rate(rate: float, what: str) -> None:
    if not 0 < rate < float("inf"):
        raise ValueError(f"{what} is {rate}: it must be above 0")
