"""The calls of a LoggerDestination are those of Composer's documentation, word for word."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import wherry.loggers
from wherry.loggers import Callback, Event, LoggerDestination, ObjectStoreLogger

#: From the page "LoggerDestination" of Composer's API reference.
PAGE = """
can_upload_files()
download_file(remote_file_name, destination, overwrite=False, progress_bar=True)
log_hyperparameters(hyperparameters)
log_images(images, name='Images', channels_last=False, step=None, masks=None, mask_class_labels=None, use_table=True)
log_metrics(metrics, step=None)
log_table(columns, rows, name='Table', step=None)
log_traces(traces)
upload_file(state, remote_file_name, file_path, *, overwrite)
"""
SIGNATURES = PAGE.strip().splitlines()


def signature_of(kind: type, method: str) -> str:
    """As the documentation writes it: without self and types."""
    signature = inspect.signature(getattr(kind, method))
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in list(signature.parameters.values())[1:]]
    return method + str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("documented", SIGNATURES)
def test_the_base_class_has_the_documented_signature(documented: str) -> None:
    assert documented == signature_of(LoggerDestination, documented.partition("(")[0])


@pytest.mark.parametrize("documented", SIGNATURES)
def test_the_object_store_logger_has_it_too(documented: str) -> None:
    # The text of that page gives overwrite the default False, its signature none. `move` is ours, and off.
    expected = documented.replace("*, overwrite)", "*, overwrite=False, move=False)")
    assert expected == signature_of(ObjectStoreLogger, documented.partition("(")[0])


def test_the_constructor_takes_any_arguments() -> None:
    assert signature_of(LoggerDestination, "__init__").removeprefix("__init__") == "(*args, **kwargs)"
    assert isinstance(LoggerDestination(1, two=2), Callback)


def test_every_event_has_a_method_and_every_method_an_event() -> None:
    methods = {name for name in vars(Callback) if not name.startswith("_")} - {"run_event", "close", "post_close"}
    assert methods == {event.value for event in Event}


def test_every_public_method_is_documented() -> None:
    for kind in (Callback, LoggerDestination, ObjectStoreLogger):
        assert [
            name for name, what in vars(kind).items() if not name.startswith("_") and callable(what) and not what.__doc__
        ] == []


def test_all_is_sorted_and_complete() -> None:
    public = {name for name, what in vars(wherry.loggers).items() if inspect.isclass(what)}
    assert wherry.loggers.__all__ == sorted(public)


def test_importing_the_loggers_loads_no_numpy_torch_or_vendor_library() -> None:
    script = "import sys, wherry.loggers; print(sorted({'numpy', 'torch', 'boto3', 'google.cloud.storage'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
