"""The canonical form of each kind of value, made from numbers, nested lists, and arrays of numpy, torch (any device) and others.

| kind | accepted | canonical |
| --- | --- | --- |
| scalar | a number, or anything of one element | float |
| image | (H,W), (C,H,W), (H,W,C); C of 1, 3 or 4 | (C,H,W) uint8 |
| images | an image, (B,H,W), (B,C,H,W), (B,H,W,C), or a sequence of images | a list of (C,H,W) uint8 |
| mask | (H,W), (1,H,W), (H,W,1) of whole numbers 0..255 | (H,W) whole numbers |
| audio | (T), (C,T), (T,C); C of 1 or 2 | (T) float32, -1..1 |
| video | (T,H,W), (T,C,H,W), (T,H,W,C); C of 1, 3 or 4 | (T,C,H,W) uint8 |
| histogram | any shape | `HistogramData` |
| point cloud | (N,3), (3,N), (B,N,3), (B,3,N), or any other shape with a dimension of 3 | (B,N,3) float32 |

If a shape can be read in two ways, channels come first: (3,32,3) is 3 x 32 x 3, and (4,32,32) is one image, not four. Leading
dimensions of 1 before an accepted shape are removed. Of points, the dimension of size 3 goes last. Of two or more other
dimensions, the first is B and the rest are merged. If several dimensions have size 3, the last one is taken, else the second,
else the first: (3,3) is three points, (3,3,9) three clouds of nine.

Integers of images are 0..255, floats 0..1. If values are outside, [min(min, 0), max(max, 255 or 1)] is scaled to 0..255, with
one scale for all images of a call and all frames of a video. NaN becomes the low end, an infinity the end of its sign.

Values of more than 4 GiB (see `size_limits.py`) are refused before they are copied. All errors are ValueErrors that begin with
the given name. Returned arrays never share memory with what was given.

Scaling an image takes several times as long as copying it. So copy_images(), copy_video() and copy_audio() only check and
copy; the to_ function of the same name makes the canonical form later, or in another thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wherry.errors import MissingExtraError
from wherry.loggers.values.arrays import is_tensor
from wherry.loggers.values.size_limits import LAST_LABEL, check_bytes

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as error:
    raise MissingExtraError("logging arrays, images and the like needs numpy: pip install 'wherry[media]'") from error

_CHANNELS = (1, 3, 4)
_AUDIO_CHANNELS = (1, 2)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Statistics are computed in blocks of so many values, so that their copies are small whatever the size of the array.
_BLOCK = 2**20
#: Any constant, so that the same points are shown at each step.
_SUBSET_SEED = 0
_LARGEST = float(np.finfo(np.float64).max)
#: In (A,B,2) the last dimension is two channels, which no picture has, and not the width of A pictures.
_NO_WIDTH = 2
_IMAGE_SHAPES = "(H,W), (C,H,W) or (H,W,C), with C of 1, 3 or 4"


@dataclass(frozen=True, eq=False)
class HistogramData:
    """How the finite values are distributed; NaN and infinities are only counted.

    `counts[i]` is the number of values from `edges[i]` to `edges[i + 1]`, which is included in the last bin only. If there is
    no finite value (n is 0), min and max are NaN.
    """

    #: (n_bins + 1,), strictly increasing
    edges: NDArray[np.float64]
    #: (n_bins,)
    counts: NDArray[np.int64]
    n: int
    min: float
    max: float
    sum: float
    sum_squares: float
    n_nan: int = 0
    n_inf: int = 0


def to_numpy(value: object, *, copy: bool = True) -> NDArray[Any]:
    """A copy of an array, a tensor (any device, layout, with or without gradient), a number or nested sequences of these.

    Types that numpy does not have, such as bfloat16, become float32. ValueError for ragged sequences. Without `copy`, the array
    may share memory with `value`.
    """
    if is_tensor(value):
        return _from_torch(value, copy=copy)
    if isinstance(value, (list, tuple)):
        array = np.array([item if isinstance(item, _PLAIN) else to_numpy(item, copy=False) for item in value])
    else:
        array = np.array(value) if copy else np.asarray(value)
    # For numpy, bfloat16 and float8 of ml_dtypes, which jax uses, are of kind V but no records
    return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.names is None else array


def to_scalar(value: object, name: str) -> float:
    """The value of a number, or of an array or tensor of one element; NaN and infinities are accepted."""
    if isinstance(value, (int, float)):
        number: int | float = value
    else:
        array = _numbers(value, name, "a scalar", "a number, or an array of one")
        if array.size != 1:
            raise _wrong(name, "a scalar", array, "a number, or an array of one")
        number = array.item()
    try:
        return float(number)
    except OverflowError as error:
        raise ValueError(f"{name}: a whole number of {int(number).bit_length()} bits is too large for a scalar") from error


def to_image(value: object, name: str, *, channels_last: bool | None = None) -> NDArray[np.uint8]:
    """An image as (C,H,W), C of 1, 3 or 4. `channels_last` says where the channels are; None: first, if both ends fit."""
    return _to_bytes([_channels_first(_numbers(value, name, "an image", _IMAGE_SHAPES), name, channels_last)])[0]


def to_images(value: object, name: str, *, channels_last: bool | None = None) -> list[NDArray[np.uint8]]:
    """One image, a batch, or a sequence of images (which may differ in size) as a list of (C,H,W); at least one."""
    return _to_bytes(_images(value, name, channels_last))


def copy_images(value: object, name: str, *, channels_last: bool | None = None) -> list[NDArray[Any]]:
    """A copy of what to_images() takes, as (C,H,W) each, of the original type."""
    return [np.array(image) for image in _images(value, name, channels_last)]


def _images(value: object, name: str, channels_last: bool | None) -> list[NDArray[Any]]:
    """Views of (C,H,W)."""
    check_bytes(value, name)
    if isinstance(value, (list, tuple)) and not _is_nested_numbers(value):
        return [_channels_first(_numbers(item, name, "an image", _IMAGE_SHAPES), name, channels_last) for item in value]
    shapes = f"one of {_IMAGE_SHAPES}, a batch (B,H,W), (B,C,H,W) or (B,H,W,C), or a sequence of images"
    array = _numbers(value, name, "an image or a batch of images", shapes)
    if array.ndim == 2 or (array.ndim == 3 and _channel_axis(array.shape, None) is not None):
        return [_channels_first(array, name, channels_last)]
    if array.ndim == 3 and array.shape[-1] != _NO_WIDTH:
        return list(array[:, None])
    if array.ndim == 4 and (axis := _channel_axis(array.shape[1:], channels_last)) is not None:
        return list(np.moveaxis(array, axis + 1, 1))
    raise _wrong(name, "images", array, shapes)


def to_mask(value: object, name: str, height: int, width: int) -> NDArray[np.integer[Any]]:
    """The labels of an image of that size, as (H,W) of whole numbers from 0 to 255; booleans become 0 and 1."""
    shapes = f"({height},{width}), as its image has"
    array = _numbers(value, name, "a mask", shapes)
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    wrong = array[~((array >= 0) & (array <= LAST_LABEL) & (array == np.trunc(array)))]
    if wrong.size:
        raise ValueError(
            f"{name}: a mask has labels that are whole numbers from 0 to {LAST_LABEL}, and this one has {wrong[0].item()}; "
            f"map an ignore label such as -100 to {LAST_LABEL}, and renumber others"
        )
    if array.ndim == 3 and 1 in (array.shape[0], array.shape[-1]):
        array = array[0] if array.shape[0] == 1 else array[..., 0]
    if array.shape != (height, width):
        raise _wrong(name, "a mask", array, shapes)
    return array.astype(np.int64 if array.dtype.kind == "f" else array.dtype)


def to_audio(value: object, name: str) -> NDArray[np.float32]:
    """Samples as (T,), within -1..1: two channels are mixed to their mean, and a peak above 1 becomes 1.

    Integers of 8, 16 and 32 bits are PCM, as in a WAV file (8 bits unsigned). NaN becomes silence, an infinity the peak.
    """
    array, channels = _audio(value, name)
    samples = _from_pcm(array)
    if channels is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            samples = samples.mean(axis=channels, dtype=np.float64)
    low, high = _finite_range(samples)
    peak = max(1.0, -low, high)
    return np.asarray(np.nan_to_num(samples, nan=0.0, posinf=peak, neginf=-peak) / peak, np.float32)


def copy_audio(value: object, name: str) -> NDArray[Any]:
    """A copy of what to_audio() takes, as (T), (C,T) or (T,C), of the original type."""
    return np.array(_audio(value, name)[0])


def _audio(value: object, name: str) -> tuple[NDArray[Any], int | None]:
    """A view of the samples, and the dimension of the channels."""
    shapes = "(T), (C,T) or (T,C), with C of 1 or 2"
    array = _without_ones(_numbers(value, name, "a sound", shapes), 2)
    channels = [axis for axis in (0, 1) if array.ndim == 2 and array.shape[axis] in _AUDIO_CHANNELS]
    if not channels and array.ndim != 1:
        raise _wrong(name, "a sound", array, shapes)
    return array, channels[0] if channels else None


def to_video(value: object, name: str) -> NDArray[np.uint8]:
    """Frames as (T,C,H,W), C of 1, 3 or 4; a sequence of frames of one size is accepted. Three dimensions are (T,H,W)."""
    return _to_bytes([_video(value, name)])[0]


def copy_video(value: object, name: str) -> NDArray[Any]:
    """A copy of what to_video() takes, as (T,C,H,W), of the original type."""
    return np.array(_video(value, name))


def _video(value: object, name: str) -> NDArray[Any]:
    """A view of (T,C,H,W)."""
    shapes = "(T,H,W), (T,C,H,W) or (T,H,W,C), with C of 1, 3 or 4"
    array = _without_ones(_numbers(value, name, "a video", shapes), 4)
    if array.ndim == 3 and array.shape[-1] != _NO_WIDTH:
        return array[:, None]
    if array.ndim == 4 and (axis := _channel_axis(array.shape[1:], None)) is not None:
        return np.moveaxis(array, axis + 1, 1)
    raise _wrong(name, "a video", array, shapes)


def to_point_cloud(value: object, name: str, *, max_points: int | None = None) -> NDArray[np.float32]:
    """Clouds of points as (B,N,3). Of more than `max_points`, a random subset is kept, the same for all clouds and all calls.

    Takes (N,3), (3,N), (B,N,3), (B,3,N) and any other shape with a dimension of 3, which goes last. So (3,H,W) is H clouds of W
    points, and (B,H,W,3) is B clouds of H x W points.
    """
    shapes = "(N,3), (3,N), (B,N,3), (B,3,N), or any shape with a dimension of 3"
    array = _numbers(value, name, "a point cloud", shapes)
    axis = _coordinate_axis(array.shape)
    if axis is None:
        raise _wrong(name, "a point cloud", array, shapes)
    points = np.moveaxis(array, axis, -1)
    clouds = points.reshape(1 if points.ndim < 3 else points.shape[0], -1, 3)
    n_points = clouds.shape[1]
    if max_points is not None and n_points > max_points:
        kept = np.random.default_rng(_SUBSET_SEED).choice(n_points, max_points, replace=False)
        clouds = clouds[:, np.sort(kept)]
    with np.errstate(over="ignore"):  # coordinates too large for float32 become infinities
        return clouds.astype(np.float32)


def to_values(value: object, name: str) -> NDArray[Any]:
    """A copy of an array of any shape, for a histogram."""
    return np.array(_numbers(value, name, "a histogram", "an array of any shape"))


def to_histogram(value: object, name: str, n_bins: int = 64) -> HistogramData:
    """How the values of an array are distributed, in `n_bins` bins of equal width from the least to the greatest."""
    values = _numbers(value, name, "a histogram", "an array of any shape").reshape(-1)
    low, high = _finite_range(values)
    n, n_nan, total, squares = 0, 0, 0.0, 0.0
    counts = np.zeros(n_bins, np.int64)
    # The width of a range such as -1e308..1e308 overflows. Divided by 4 it does not, and numbers so large lose no precision.
    unit = 4.0 if max(abs(low), abs(high)) > _LARGEST / 4 else 1.0
    edges = _edges(low / unit, high / unit, n_bins, limit=_LARGEST / unit)
    for part in _blocks(values):
        block = part.astype(np.float64)
        finite = block[np.isfinite(block)]
        n += finite.size
        n_nan += int(np.isnan(block).sum())
        counts += np.histogram(finite / unit, n_bins, (edges[0], edges[-1]))[0]
        with np.errstate(over="ignore"):
            total += float(finite.sum())
            squares += float(np.square(finite).sum())
    lowest, highest = (low, high) if n else (math.nan, math.nan)
    return HistogramData(edges * unit, counts, n, lowest, highest, total, squares, n_nan, values.size - n - n_nan)


# arrays


def _from_torch(tensor: Any, *, copy: bool) -> NDArray[Any]:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    if tensor.is_floating_point() and tensor.dtype.itemsize < 4 and str(tensor.dtype) != "torch.float16":
        tensor = tensor.float()
    array: NDArray[Any] = tensor.resolve_conj().resolve_neg().to("cpu", copy=copy).numpy()
    return array


def _numbers(value: object, name: str, kind: str, accepted: str) -> NDArray[Any]:
    """`value` as an array, perhaps sharing its memory. ValueError if it is none, empty or not of real numbers."""
    check_bytes(value, name)
    try:
        array = to_numpy(value, copy=False)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged; of another kind; a tensor without content
        raise ValueError(f"{name}: {kind} cannot be read from a {type(value).__name__} ({error}); give {accepted}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: {kind} is of numbers, and not of {array.dtype} in a {type(value).__name__}; give {accepted}")
    if array.size == 0:
        raise ValueError(f"{name}: {kind} of shape {array.shape} is empty; give {accepted}, with at least one element")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _wrong(name: str, kind: str, array: NDArray[Any], accepted: str) -> ValueError:
    return ValueError(f"{name}: {kind} cannot have the shape {array.shape}; give {accepted}")


def _is_nested_numbers(value: Sequence[object]) -> bool:
    """Whether `value` is lists of numbers at any depth, or empty."""
    item: object = value
    while isinstance(item, (list, tuple)) and item:
        item = item[0]
    return isinstance(item, (*_PLAIN, np.generic, list, tuple))


def _without_ones(array: NDArray[Any], n_dimensions: int) -> NDArray[Any]:
    """Remove leading dimensions of 1 while there are more than `n_dimensions`."""
    while array.ndim > n_dimensions and array.shape[0] == 1:
        array = array[0]
    return array


def _coordinate_axis(shape: tuple[int, ...]) -> int | None:
    """The dimension of the coordinates of points; None if none has the size 3.

    ml-starter takes the first of that size. Here the last one is tried before it, so that to_point_cloud() returns its own
    results unchanged, even with three clouds; then the second, so that (3,3,N) is a batch of three as (2,3,N) is one of two.
    """
    candidates = [len(shape) - 1, 1, *range(len(shape))] if len(shape) > 1 else range(len(shape))
    return next((axis for axis in candidates if shape[axis] == 3), None)


# pictures


def _channel_axis(shape: tuple[int, ...], channels_last: bool | None) -> int | None:
    """The dimension of the channels, 0 or 2; None if neither fits."""
    ends = (0, 2) if channels_last is None else (2,) if channels_last else (0,)
    return next((end for end in ends if shape[end] in _CHANNELS), None)


def _channels_first(array: NDArray[Any], name: str, channels_last: bool | None) -> NDArray[Any]:
    """A view of an image as (C,H,W)."""
    array = _without_ones(array, 3)
    if array.ndim == 2:
        return array[None]
    if array.ndim == 3 and (axis := _channel_axis(array.shape, channels_last)) is not None:
        return np.moveaxis(array, axis, 0)
    told = "" if channels_last is None else f" (channels_last is {channels_last})"
    raise _wrong(name, "an image", array, _IMAGE_SHAPES + told)


def _to_bytes(arrays: Sequence[NDArray[Any]]) -> list[NDArray[np.uint8]]:
    """As 0..255 on one scale; each in new, contiguous memory."""
    floats = _bounds([array for array in arrays if array.dtype.kind == "f"], 1.0)
    wholes = _bounds([array for array in arrays if array.dtype.kind in "iu" and array.dtype != np.uint8], 255.0)
    return [_spread(array, *(floats if array.dtype.kind == "f" else wholes)) for array in arrays]


def _bounds(arrays: Sequence[NDArray[Any]], top: float) -> tuple[float, float]:
    ranges = [_finite_range(array) for array in arrays]
    return min([0.0, *(low for low, _ in ranges)]), max([top, *(high for _, high in ranges)])


def _spread(array: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    if array.dtype.kind == "b":
        return np.where(array, np.uint8(255), np.uint8(0))
    if array.dtype == np.uint8 or (array.dtype.kind in "iu" and (low, high) == (0.0, 255.0)):
        return array.astype(np.uint8, order="C")
    kind = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    work: NDArray[np.floating[Any]] = array.astype(kind, order="C")
    if not np.isfinite(work).all():
        np.nan_to_num(work, copy=False, nan=low, posinf=high, neginf=low)
    if (low, high) != (0.0, 1.0):
        np.divide(work, 2, out=work)  # of halves, as the width of the whole range of floats overflows
        np.subtract(work, low / 2, out=work)
        np.divide(work, high / 2 - low / 2, out=work)
    np.multiply(work, 255, out=work)
    np.rint(work, out=work)
    return work.astype(np.uint8)


# numbers


def _blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    flat = values.reshape(-1)
    return (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))


def _finite_range(values: NDArray[Any]) -> tuple[float, float]:
    """The least and the greatest finite value; zeros if there is none."""
    low, high = float(values.min()), float(values.max())
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    low, high = math.inf, -math.inf
    for block in _blocks(values):
        finite = block[np.isfinite(block)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def _edges(low: float, high: float, n_bins: int, limit: float) -> NDArray[np.float64]:
    """n_bins + 1 strictly increasing edges. If the values are too close for that, the range is widened."""
    edges = np.linspace(low, high, n_bins + 1)
    if (np.diff(edges) > 0).all():
        return edges
    half = max(0.5 if low == high else 0.0, 2 * n_bins * float(np.spacing(max(abs(low), abs(high)))))
    return np.linspace(max(low - half, -limit), min(high + half, limit), n_bins + 1)


def _from_pcm(samples: NDArray[Any]) -> NDArray[Any]:
    """As floats; integers of a type that sound is stored in are divided by its full scale."""
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    if samples.dtype in (np.int8, np.int16, np.int32):
        return samples / float(2 ** (8 * samples.dtype.itemsize - 1))
    return samples.astype(np.float32) if samples.dtype in (np.float16, np.bool_) else samples
