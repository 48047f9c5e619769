"""ValueDestination: a destination that gets each logged text, table, image, sound and so on as a value in one form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, TypeVar

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.values import encode
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video
from wherry.loggers.values.steps import to_step

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger
    from wherry.loggers.run.state import State

_Self = TypeVar("_Self", bound="ValueDestination")


class ValueDestination(LoggerDestination, ABC):
    """Has one method for all media, `write`; metrics, settings and traces are left to the subclass::

        class PrintDestination(ValueDestination):
            def write(self, value: Value, step: int) -> None:
                match value:
                    case Text():
                        print(step, value.name, value.text)
                    case Images():
                        print(step, value.name, [image.mean() for image in value.images])

    A log call checks and copies what it is given (see `kinds.py`), so that a ValueError is raised by the call itself and
    `write` may keep the value. Without a step, the calls of a kind and a name are counted from 0; a call that is refused is
    not counted.
    """

    #: Kind -> (module, package) of the library that encodes it. The thread that logs imports it, see `encode.require`.
    needs: ClassVar[Mapping[str, tuple[str, str]]] = {"images": ("PIL.Image", "Pillow"), "video": ("av", "PyAV")}
    #: Larger clouds of points are reduced to so many points.
    max_points: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False
        self._counts: dict[str, Iterator[int]] = {}

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is left. Closing again does nothing."""
        self._is_closed = True

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def write(self, value: Value, step: int) -> None:
        """Write a value, or have a thread write it. The value is not changed by anybody else."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self!r}: make a new one to go on logging")

    def _is_taking(self) -> bool:
        """Whether values are written here: False on a rank that writes nothing. RuntimeError after the close."""
        self._check_open()
        return True

    def _step(self, step: int | None, counter: str) -> int:
        """The step as an int; for None, how many calls `counter` has seen."""
        return next(self._counts.setdefault(counter, count())) if step is None else to_step(step, counter)

    def _put(self, value: Value, step: int | None) -> None:
        self.write(value, self._step(step, f"{value.kind} {value.name}"))

    def _takes(self, kind: str) -> bool:
        if not self._is_taking():
            return False
        if kind in self.needs:
            encode.require(*self.needs[kind])
        return True

    def log_images(
        self,
        images: object,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: Mapping[str, object] | None = None,
        mask_class_labels: Mapping[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Log images and their masks. ValueError for shapes that are none; for masks once the images were accepted."""
        if self._takes(Images.kind):
            value, wrong = Images.of(
                images,
                str(name),
                channels_last=channels_last,
                masks=masks,
                mask_class_labels=mask_class_labels,
                use_table=use_table,
            )
            self._put(value, step)
            if wrong is not None:
                raise wrong

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table. ValueError for rows that are not as long as there are columns."""
        if self._takes(Table.kind):
            self._put(Table.of(columns, rows, str(name)), step)

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Log a text."""
        if self._takes(Text.kind):
            self._put(Text(str(name), str(text)), step)

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Log how the finite ones of the values are distributed."""
        if self._takes(Histogram.kind):
            self._put(Histogram.of(values, str(name)), step)

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Log a sound. ValueError for a shape that is none, or a rate that is not above 0."""
        if self._takes(Audio.kind):
            self._put(Audio.of(audio, str(name), sample_rate_hz), step)

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = 12.0, step: int | None = None) -> None:
        """Log a video. ValueError for a shape that is none, or a rate that is not above 0."""
        if self._takes(Video.kind):
            self._put(Video.of(video, str(name), frames_per_s), step)

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Log a cloud of points, or a batch of them."""
        if self._takes(PointCloud.kind):
            self._put(PointCloud.of(points, str(name), self.max_points), step)
