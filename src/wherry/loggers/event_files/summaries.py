"""What TensorBoard's dashboards read, encoded by hand: one function a kind, each giving the bytes of a ``Summary.Value``.

The messages are those of ``summary.proto``, ``tensor.proto`` (https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto)
and of each plugin's ``plugin_data.proto`` (.../tensorboard/plugins/<name>/); how a plugin reads its tensor is said in its
``summary_v2.py``. Texts, points and hparams are tensors with the plugin's name in their metadata, as TensorFlow 2 writes them.
The metadata stands in every value, so that each file of a run can be read without the others.

Scalars, images, histograms and audio are in the fields of their kinds, as torch's SummaryWriter writes them: TensorBoard makes
tensors of them when it reads them (``data_compat.py``), and tools that read event files, such as its own EventAccumulator, find
them only there.

Readers keep the metadata of a tag's first value and drop values of another kind under that tag: a tag has one kind for ever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wherry.loggers.event_files.protobuf import binary, double, float_field, integer, string, varint
from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.tables import joined_names
from wherry.loggers.values.text import format_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wherry.loggers.values.canonical import HistogramData

_FLOAT, _STRING = 1, 7  # types.proto, DataType
_WAV = 11  # AudioPluginData.Encoding
_TENSOR, _BLOBS = 2, 3  # summary.proto, DataClass
_VERTEX = 1  # MeshPluginData.ContentType
_SUCCESS, _FAILURE = 1, 2  # the hparams plugin's api.proto, Status
#: A point is so much of its cloud's diagonal in size: a torus of 2,000 points still looks like points, and is seen.
_POINT_SIZE = 1 / 150

#: An hparams value that its dashboard can sort and filter by.
HParam = bool | int | float | str


def scalar_prefix(tag: str) -> bytes:
    """A point of a curve without the four bytes of its number at the end."""
    return string(1, tag) + b"\x15"  # simple_value = 2, fixed 32 bits


def text(tag: str, markdown: str) -> bytes:
    """A text, which TensorBoard renders as Markdown."""
    return _value(tag, "text", b"", integer(1, _STRING) + _shape(()) + string(8, markdown))


def image(tag: str, shape_chw: Sequence[int], encoded: bytes, description: str = "") -> bytes:
    """An image of that shape, channels first, as PNG, GIF or JPEG bytes."""
    channels, height, width = shape_chw
    content = integer(1, height) + integer(2, width) + integer(3, channels) + binary(4, encoded)
    return _old_value(tag, "images", b"", _BLOBS, binary(4, content), description)


def audio(tag: str, wav: bytes, sample_rate_hz: float, n_samples: int) -> bytes:
    """One clip of one channel."""
    content = float_field(1, sample_rate_hz) + integer(2, 1) + integer(3, n_samples) + binary(4, wav) + string(5, "audio/wav")
    return _old_value(tag, "audio", integer(2, _WAV), _BLOBS, binary(6, content))


def histogram(tag: str, found: HistogramData) -> bytes:
    """A distribution: upper edge and count of each bin. TensorBoard takes the least and greatest value for the outer edges."""
    figures = (float(found.edges[0]), float(found.edges[-1]), float(found.n), found.sum, found.sum_squares)
    content = b"".join(double(field, figure) for field, figure in enumerate(figures, 1))
    content += binary(6, found.edges[1:].astype("<f8").tobytes()) + binary(7, found.counts.astype("<f8").tobytes())
    return _old_value(tag, "histograms", b"", _TENSOR, binary(5, content))


def point_cloud(tag: str, points: NDArray[np.float32]) -> bytes:
    """Clouds of points: batch x n x 3. A point that is nowhere (NaN) would take the camera with it; it is put onto another."""
    import numpy as np

    is_somewhere = np.asarray(np.isfinite(points).all(axis=-1))
    if not is_somewhere.all():
        others = [cloud[good][0] if good.any() else np.zeros(3) for cloud, good in zip(points, is_somewhere, strict=True)]
        points = np.where(is_somewhere[..., None], points, np.asarray(others, np.float32)[:, None, :])
    extent = float(np.linalg.norm(np.ptp(points.reshape(-1, 3).astype(np.float64), axis=0))) if points.size else 0.0
    scene = json.dumps({"material": {"cls": "PointsMaterial", "size": extent * _POINT_SIZE or 1.0}})
    shape, parts = binary(6, b"".join(map(varint, points.shape))), integer(7, 1 << _VERTEX)
    plugin_data = b"".join((string(2, tag), integer(3, _VERTEX), string(5, scene), shape, parts))
    tensor = _tensor(_FLOAT, points.shape, points.astype("<f4").tobytes())
    return _value(f"{tag}_VERTEX", "mesh", plugin_data, tensor)


def session_start(settings: Mapping[str, HParam], started_at_s: float) -> bytes:
    """What a run was started with. Only the first one of a run counts; there the dashboard finds metrics in the same run."""
    entries = b"".join(binary(1, string(1, name) + binary(2, _protobuf_value(value))) for name, value in settings.items())
    return _hparams("_hparams_/session_start_info", binary(3, entries + double(5, started_at_s)))


def session_end(ended_at_s: float, *, failed: bool) -> bytes:
    """That a run has ended, and how."""
    end = integer(1, _FAILURE if failed else _SUCCESS) + double(2, ended_at_s)
    return _hparams("_hparams_/session_end_info", binary(4, end))


def hparams(settings: Mapping[str, object]) -> dict[str, HParam]:
    """Settings as the hparams dashboard can show them: nested names are joined by "/"; what is no number is text.

    The dashboard leaves out NaN and infinities, so they are text, too.
    """
    return {name: _leaf(value) for name, value in joined_names(settings)}


def _leaf(value: object) -> HParam:
    if isinstance(value, str) or value is None:
        return str(value)
    number = to_number(value)
    if number is None:
        return format_json(value)
    return number if isinstance(number, int) or math.isfinite(number) else str(number)


def _hparams(tag: str, plugin_data: bytes) -> bytes:
    return _value(tag, "hparams", plugin_data, _tensor(_FLOAT, (0,), b""))


def _protobuf_value(value: HParam) -> bytes:
    """google.protobuf.Value."""
    if isinstance(value, bool):
        return integer(4, value)
    return string(3, value) if isinstance(value, str) else double(2, value)


def _old_value(tag: str, plugin: str, plugin_data: bytes, data_class: int, content: bytes, description: str = "") -> bytes:
    """A value in the field of its kind. TensorBoard's fast loader takes our metadata for it if they say the class of data."""
    about = string(3, description) if description else b""
    return string(1, tag) + binary(9, _plugin(plugin, plugin_data) + about + integer(4, data_class)) + content


def _value(tag: str, plugin: str, plugin_data: bytes, tensor: bytes) -> bytes:
    return b"".join((string(1, tag), binary(9, _plugin(plugin, plugin_data)), binary(8, tensor)))


def _plugin(name: str, data: bytes) -> bytes:
    return binary(1, string(1, name) + binary(2, data))


def _tensor(kind: int, shape: Sequence[int], content: bytes) -> bytes:
    return integer(1, kind) + _shape(shape) + binary(4, content)


def _shape(shape: Sequence[int]) -> bytes:
    return binary(2, b"".join(binary(2, integer(1, size)) for size in shape))
