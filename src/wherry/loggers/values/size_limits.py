"""Limits of what one call may log. An array may be larger than memory: one number, broadcast to 100,000 x 100,000."""

from __future__ import annotations

from wherry.loggers.values.arrays import is_tensor

#: The size of a copy of an array: the weights of a layer of 128,256 x 8,192 in float32, or ten seconds of video.
MAX_BYTES = 4 * 2**30
#: The cells of a table; a cell takes about 100 bytes.
MAX_CELLS = 10_000_000
#: The largest label of a mask that indexed PNGs and W&B accept.
LAST_LABEL = 255
#: The size of a number in a list as numpy stores it, and of a float of a type that numpy does not have.
_NUMBER_BYTES, _FLOAT_BYTES = 8, 4


def check_bytes(value: object, name: str) -> None:
    """ValueError for an array, tensor or nested sequence of more than MAX_BYTES; nothing is copied to find out."""
    n_bytes = bytes_of(value)
    if n_bytes > MAX_BYTES:
        shape = " x ".join(map(str, _shape(value)))
        raise ValueError(
            f"{name}: its shape is {shape}, {n_bytes / 2**30:.1f} GiB, and at most {MAX_BYTES // 2**30} GiB are logged in one "
            "call: log a part of it, or every n-th element"
        )


def check_cells(n_rows: int, n_columns: int, name: str) -> None:
    """ValueError for a table of more than MAX_CELLS."""
    if n_rows * n_columns > MAX_CELLS:
        raise ValueError(
            f"table {name!r}: {n_rows} rows of {n_columns} columns are {n_rows * n_columns} cells, and at most {MAX_CELLS} are "
            "logged in one call: log a part of them, or upload a file"
        )


def bytes_of(value: object) -> int:
    """The size of a copy of the array, tensor or nested sequence; 0 for anything else."""
    if is_tensor(value):
        return int(value.numel() * max(value.element_size(), _FLOAT_BYTES if value.is_floating_point() else 1))
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (list, tuple)):
            return len(value) * bytes_of(value[0])  # if the lengths differ, it is no array
        holds_arrays = bool(value) and hasattr(value[0], "shape")
        return sum(bytes_of(item) for item in value) if holds_arrays else _NUMBER_BYTES * len(value)
    n_bytes: object = getattr(value, "nbytes", 0)
    return int(n_bytes) if isinstance(n_bytes, int) else 0


def _shape(value: object) -> tuple[int, ...]:
    if isinstance(value, (list, tuple)):
        return (len(value), *_shape(value[0])) if value else (0,)
    return tuple(getattr(value, "shape", ()))
