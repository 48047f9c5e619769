"""The calls are those of Composer's documentation, of today and of two older generations, word for word."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

from wherry.loggers import Callback, Event, Logger, LoggerDestination, ObjectStoreLogger, State
from wherry.loggers.run.level import LogLevel
from wherry.loggers.values.text import format_log_data_value

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

#: The same page in its version 0.10.
PAGE_0_10 = """
can_log_file_artifacts()
get_file_artifact(artifact_name, destination, overwrite=False, progress_bar=True)
log_file_artifact(state, log_level, artifact_name, file_path, *, overwrite)
log_hyperparameters(hyperparameters)
log_metrics(metrics, step=None)
log_traces(traces)
"""

#: From the page "Logger and LogLevel" of version 0.3, without types.
LOGGER_PAGE_0_3 = """
metric(log_level, data)
metric_batch(data)
metric_epoch(data)
metric_fit(data)
metric_microbatch(data)
metric_verbose(data)
"""
LOG_CALLS = [name for name in dir(LoggerDestination) if name.startswith("log_")]
NOT_ROUTED = {"log_metric", "log_file_artifact"}  # Logger.metric and Logger.file_artifact, with other parameters


def signature_of(kind: type, method: str) -> str:
    """As the documentation writes it: without self and types."""
    return without_types(getattr(kind, method)).replace("(self, ", "(", 1).replace("(self)", "()", 1)


def without_types(function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return function.__name__ + str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("documented", SIGNATURES)
def test_the_base_class_has_the_documented_signature(documented: str) -> None:
    assert documented == signature_of(LoggerDestination, documented.partition("(")[0])


@pytest.mark.parametrize("documented", SIGNATURES)
def test_the_object_store_logger_has_it_too(documented: str) -> None:
    # The text of that page gives overwrite the default False, its signature none. `move` is ours, and off.
    expected = documented.replace("*, overwrite)", "*, overwrite=False, move=False)")
    assert expected == signature_of(ObjectStoreLogger, documented.partition("(")[0])


@pytest.mark.parametrize("documented", PAGE_0_10.strip().splitlines())
def test_the_base_class_has_the_signatures_of_version_0_10(documented: str) -> None:
    assert documented == signature_of(LoggerDestination, documented.partition("(")[0])


@pytest.mark.parametrize("documented", LOGGER_PAGE_0_3.strip().splitlines())
def test_the_router_has_the_signatures_of_version_0_3(documented: str) -> None:
    assert documented == signature_of(Logger, documented.partition("(")[0])


def test_the_router_is_made_as_in_every_version() -> None:
    state, one, other = State("run"), LoggerDestination(), LoggerDestination()
    assert Logger(state).destinations == ()
    assert Logger(state, [one]).destinations == (one,)  # 0.3: backends, since 0.6: destinations
    assert Logger(state, backends=[one]).destinations == (one,)
    assert Logger(state, destinations=[one], backends=[other]).destinations == (one, other)


def test_the_levels_are_those_of_version_0_3() -> None:
    assert [level.name for level in LogLevel] == ["FIT", "EPOCH", "BATCH", "MICROBATCH", "VERBOSE"]
    assert LogLevel.FIT < LogLevel.EPOCH < LogLevel.BATCH < LogLevel.MICROBATCH < LogLevel.VERBOSE


def test_the_formatter_takes_its_data_by_position_only() -> None:
    assert "format_log_data_value(data, /)" == without_types(format_log_data_value)


def test_the_first_generation_call_is_that_of_version_0_3() -> None:
    assert "log_metric(epoch, step, log_level, data)" == signature_of(LoggerDestination, "log_metric")


@pytest.mark.parametrize("call", sorted(set(LOG_CALLS) - NOT_ROUTED))
def test_the_router_has_every_log_call_with_the_same_defaults(call: str) -> None:
    expected = signature_of(LoggerDestination, call)
    if call == "log_hyperparameters":  # Composer's router calls them otherwise than its destinations
        expected = expected.replace("(hyperparameters)", "(hyperparameters=None, *, parameters=None)")
    assert expected == signature_of(Logger, call)


def test_the_constructor_takes_any_arguments() -> None:
    assert signature_of(LoggerDestination, "__init__").removeprefix("__init__") == "(*args, **kwargs)"
    assert isinstance(LoggerDestination(1, two=2), Callback)


def test_every_event_has_a_method_and_every_method_an_event() -> None:
    methods = {name for name in vars(Callback) if not name.startswith("_")} - {"run_event", "close", "post_close"}
    assert methods == {event.value for event in Event}


def test_every_public_method_is_documented() -> None:
    for kind in (Callback, LoggerDestination, Logger, *Logger.__bases__, ObjectStoreLogger):
        assert [
            name for name, what in vars(kind).items() if not name.startswith("_") and callable(what) and not what.__doc__
        ] == []


def test_importing_the_loggers_loads_no_numpy_torch_or_vendor_library() -> None:
    script = "import sys, wherry.loggers; print(sorted({'numpy', 'torch', 'boto3', 'google.cloud.storage'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
