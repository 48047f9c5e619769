"""What TensorBoard's dashboards read, encoded by hand: one function a kind, each giving the bytes of a ``Summary.Value``.

The messages are those of ``summary.proto``, ``tensor.proto`` (https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto)
and of each plugin's ``plugin_data.proto`` (.../tensorboard/plugins/<name>/); how a plugin reads its tensor is said in its
``summary_v2.py``. Everything but scalars is a tensor with the plugin's name in its metadata, as TensorFlow 2 writes it. The
metadata stands in every value, so that each file of a run can be read without the others.

Readers keep the metadata of a tag's first value and drop values of another kind under that tag: a tag has one kind for ever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from wherry.loggers.arrays import to_number
from wherry.loggers.format import format_json
from wherry.loggers.protobuf_wire import binary, double, float32, integer, packed_integers, string

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FLOAT, _DOUBLE, _STRING = 1, 2, 7  # types.proto, DataType
_WAV = 11  # AudioPluginData.Encoding
_VERTEX = 1  # MeshPluginData.ContentType
_SUCCESS, _FAILURE = 1, 2  # the hparams plugin's api.proto, Status
#: A point is so much of its cloud's diagonal in size: a torus of 2,000 points still looks like points, and is seen.
_POINT_SIZE = 1 / 150

#: An hparams value that its dashboard can sort and filter by.
HParam = bool | int | float | str


def scalar(tag: str, number: float) -> bytes:
    """A point of a curve; kept as a float, so to seven digits."""
    return scalar_prefix(tag) + float32(number)


def scalar_prefix(tag: str) -> bytes:
    """All of scalar() but the four bytes of its number at the end."""
    return string(1, tag) + b"\x15"  # simple_value = 2, fixed 32 bits


def text(tag: str, markdown: str, description: str = "") -> bytes:
    """A text, which TensorBoard renders as Markdown."""
    return _value(tag, "text", b"", _strings((), [markdown.encode("utf-8", "replace")]), description)


def images(tag: str, width: int, height: int, encoded: Sequence[bytes], description: str = "") -> bytes:
    """Images of one step as PNG, GIF or JPEG bytes; they need not have one size, the dashboard gets it from the first."""
    content = [str(width).encode(), str(height).encode(), *encoded]
    return _value(tag, "images", b"", _strings((len(content),), content), description)


def audio(tag: str, wav: bytes, description: str = "") -> bytes:
    """One clip: n x 2 strings of WAV bytes and label, with n = 1."""
    return _value(tag, "audio", integer(2, _WAV), _strings((1, 2), [wav, b""]), description)


def histogram(tag: str, edges: NDArray[np.float64], counts: NDArray[np.int64], description: str = "") -> bytes:
    """A distribution: n x 3 of left edge, right edge, count, from n + 1 edges and n counts."""
    import numpy as np

    rows = np.stack([edges[:-1], edges[1:], counts], axis=1).astype("<f8")
    return _value(tag, "histograms", b"", _tensor(_DOUBLE, rows.shape, rows.tobytes()), description)


def point_cloud(tag: str, points: NDArray[np.float32], description: str = "") -> bytes:
    """Clouds of points: batch x n x 3. A point that is nowhere (NaN) would take the camera with it; it is put onto another."""
    import numpy as np

    is_somewhere = np.asarray(np.isfinite(points).all(axis=-1))
    if not is_somewhere.all():
        others = [cloud[good][0] if good.any() else np.zeros(3) for cloud, good in zip(points, is_somewhere, strict=True)]
        points = np.where(is_somewhere[..., None], points, np.asarray(others, np.float32)[:, None, :])
    extent = float(np.linalg.norm(np.ptp(points.reshape(-1, 3).astype(np.float64), axis=0))) if points.size else 0.0
    scene = json.dumps({"material": {"cls": "PointsMaterial", "size": extent * _POINT_SIZE or 1.0}})
    shape, parts = packed_integers(6, points.shape), integer(7, 1 << _VERTEX)
    plugin_data = b"".join((string(2, tag), integer(3, _VERTEX), string(5, scene), shape, parts))
    tensor = _tensor(_FLOAT, points.shape, points.astype("<f4").tobytes())
    return _value(f"{tag}_VERTEX", "mesh", plugin_data, tensor, description)


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
    return dict(_leaves(settings, ""))


def _leaves(settings: Mapping[str, object], below: str) -> Iterator[tuple[str, HParam]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{below}{name}/")
        else:
            yield f"{below}{name}", _leaf(value)


def _leaf(value: object) -> HParam:
    if isinstance(value, str) or value is None:
        return str(value)
    number = to_number(value)
    if number is None:
        return format_json(value)
    return number if isinstance(number, int) or math.isfinite(number) else str(number)


def _hparams(tag: str, plugin_data: bytes) -> bytes:
    return _value(tag, "hparams", plugin_data, _tensor(_FLOAT, (0,), b""), "")


def _protobuf_value(value: HParam) -> bytes:
    """google.protobuf.Value."""
    if isinstance(value, bool):
        return integer(4, value)
    return string(3, value) if isinstance(value, str) else double(2, value)


def _value(tag: str, plugin: str, plugin_data: bytes, tensor: bytes, description: str) -> bytes:
    metadata = binary(1, string(1, plugin) + binary(2, plugin_data))
    if description:
        metadata += string(3, description)
    return b"".join((string(1, tag), binary(9, metadata), binary(8, tensor)))


def _tensor(kind: int, shape: Sequence[int], content: bytes) -> bytes:
    return integer(1, kind) + _shape(shape) + binary(4, content)


def _strings(shape: Sequence[int], content: Sequence[bytes]) -> bytes:
    return b"".join((integer(1, _STRING), _shape(shape), *(binary(8, one) for one in content)))


def _shape(shape: Sequence[int]) -> bytes:
    return binary(2, b"".join(binary(2, integer(1, size)) for size in shape))
