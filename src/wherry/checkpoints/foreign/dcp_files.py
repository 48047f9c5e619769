"""Which files a `.metadata` of torch.distributed.checkpoint names, without torch, and without running what a pickle may ask for.

The file is a pickle, written by anybody. Of the classes that it names none is loaded: each is replaced by one that only keeps
values, and a name that torch.distributed.checkpoint does not write there is refused. The interpreter is that of the standard
library in Python, without the instructions that allocate or look up something else: a few bytes can ask the one in C for many
gigabytes (LONG_BINPUT, BYTEARRAY8).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

from wherry.errors import IntegrityError
from wherry.uri import check_name

#: Modules whose names describe tensors and their places: dtypes, sizes, chunks, files.
_MODULES = frozenset({"torch", "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"})
_NAMES = frozenset({("torch.serialization", "_get_layout"), ("collections", "OrderedDict")})
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
#: What a writer of such a file uses, protocols 2 to 5.
_INSTRUCTIONS = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET, pickle.MEMOIZE),
)


class _Kept:
    """Stands for an object of some class: keeps what it was made of, and does nothing."""

    kind = ""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        """An OrderedDict's items, which nobody asks for."""


def _set_items(reader: Any, items: list[Any]) -> None:
    """Keys are texts, numbers or objects: a tuple of tuples of tuples may take forever to hash."""
    if odd := [key for key in items[0::2] if not isinstance(key, (str, int, _Kept))]:
        raise pickle.UnpicklingError(f"a {type(odd[0]).__name__} is a key in it")
    target = reader.stack[-1]
    for at in range(0, len(items), 2):
        target[items[at]] = items[at + 1]


def _set_item(reader: Any) -> None:
    items = reader.stack[-2:]
    del reader.stack[-2:]
    _set_items(reader, items)


class _Reader(pickle._Unpickler):
    """Reads the values and keeps everything else."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _INSTRUCTIONS},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: lambda reader: _set_items(reader, reader.pop_mark()),
    }

    def find_class(self, module: str, name: str) -> Any:
        """A class that keeps values in place of the one that is named; UnpicklingError for names that do not belong there."""
        is_path = (module == "pathlib" or module.startswith("pathlib.")) and name in _PATHS
        if (module in _MODULES and name.isidentifier()) or (module, name) in _NAMES or is_path:
            return type(name, (_Kept,), {"kind": f"{module}.{name}"})
        raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor")


def files_named_by(metadata: bytes, uri: str) -> dict[str, int]:
    """The files that the checkpoint consists of, each with the least bytes that it must have. IntegrityError for a pickle that
    is none of torch.distributed.checkpoint's, wants more than values, or names what cannot be in its folder.
    """
    try:
        found = _Reader(io.BytesIO(metadata)).load()
        return _files_of(found)
    except Exception as error:  # what a hostile pickle raises may be anything
        why = f"it holds the instruction {error}" if isinstance(error, KeyError) else str(error)
        raise IntegrityError(
            f"it is refused as metadata of torch.distributed.checkpoint: {why}".splitlines()[0], operation="read", uri=uri
        ) from error


def _files_of(metadata: object) -> dict[str, int]:
    if not isinstance(metadata, _Kept) or metadata.kind != "torch.distributed.checkpoint.metadata.Metadata":
        raise pickle.UnpicklingError("it holds no metadata of a checkpoint")
    places = metadata.state.get("storage_data") if isinstance(metadata.state, dict) else None
    if not isinstance(places, dict):
        raise pickle.UnpicklingError("it does not say where the tensors are")
    files: dict[str, int] = {}
    for place in places.values():
        state = place.state if isinstance(place, _Kept) else None
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("it holds a place that is none")
        name, offset, length = (state.get(field) for field in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise pickle.UnpicklingError("it holds a place without a file, an offset or a length")
        files[check_name(name)] = max(files.get(name, 0), offset + length)
    return files
