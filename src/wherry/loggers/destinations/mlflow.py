"""MLflowLogger: logs everything to MLflow through its own package (the extra ``mlflow``)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.errors import AccessDeniedError, AlreadyExistsError, ConfigError, NotFoundError, PermanentError, TransientError
from wherry.loggers.destinations.tracker import METRIC_BYTES, TrackerConfig, TrackerLogger, as_ours, numbers_of
from wherry.loggers.run.state import State
from wherry.loggers.values import encode
from wherry.loggers.values.arrays import to_float
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video
from wherry.loggers.values.masks import mask_overlay
from wherry.loggers.values.safe_name import safe_name
from wherry.loggers.values.tables import free_name, joined_names, plain_cell
from wherry.loggers.values.text import format_json
from wherry.posix.fork import temporary_folder

if TYPE_CHECKING:
    import numpy as np
    from mlflow import MlflowClient
    from numpy.typing import NDArray

#: Kind of value -> folder and suffix of its artifacts.
_FILES = {
    "text": ("text", "txt"),
    "histogram": ("histograms", "json"),
    "audio": ("audio", "wav"),
    "video": ("video", "mp4"),
    "point_cloud": ("pointclouds", "ply"),
}
#: MLflow's limits: metrics and parameters in one request, characters of a parameter.
_MAX_METRICS, _MAX_PARAMS, _MAX_PARAM_CHARS = 1000, 100, 6000
#: The characters that MLflow refuses in all names, and in names of images.
_REFUSED, _REFUSED_IN_IMAGES = re.compile(r"[^\w\-./ ]"), re.compile(r"[^\w\-./ ]", re.ASCII)
#: MLflow makes one file name of an image's name, step, time and a random number.
_MAX_IMAGE_NAME_BYTES = 120
_PROGRESS = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
_progress_lock = threading.Lock()
_ERRORS: dict[str, Callable[[Exception, str, str], Exception]] = {
    **dict.fromkeys(("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"), partial(as_ours, kind=NotFoundError)),
    **dict.fromkeys(("PERMISSION_DENIED", "UNAUTHENTICATED"), partial(as_ours, kind=AccessDeniedError)),
    **dict.fromkeys(("TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED"), partial(as_ours, kind=TransientError)),
    **dict.fromkeys(("INVALID_PARAMETER_VALUE", "BAD_REQUEST"), partial(as_ours, kind=PermanentError)),
}


@dataclass(frozen=True)
class MLflowConfig(TrackerConfig):
    """How an MLflowLogger works. ConfigError for values that make no sense."""

    #: A server, or ``sqlite:///mlflow.db``. None: MLflow's default, such as MLFLOW_TRACKING_URI.
    tracking_uri: str | None = None
    #: The run to resume.
    run_id: str | None = None
    #: Whether to resume the newest run of the experiment with the run's name, if there is one. Off, as names need not be unique.
    resume: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MLflowRun:
    """A run that has begun, and the client for it."""

    client: MlflowClient
    run_id: str


class MLflowLogger(TrackerLogger[MLflowRun]):
    """Logs to a run of MLflow's `experiment`, which is made if it is missing. The run has the state's run name::

        with MLflowLogger("my-experiment", config=MLflowConfig(tracking_uri="sqlite:///mlflow.db")) as log:
            log.log_metrics({"loss": 0.5}, step=1)

    | call | in MLflow |
    | --- | --- |
    | log_metrics | metrics, up to 1000 in a request; steps may go back |
    | log_hyperparameters | parameters, nested names joined by "/"; MLflow never changes one, so a new value is a tag |
    | log_images | the image grid; several as "name/0" ...; masks drawn over them as "name/mask", and in ``masks/..png`` |
    | log_table | ``tables/name.json``, with a column "step"; ``mlflow.load_table`` reads it |
    | log_text, log_traces, log_histogram | ``text/name/step.txt``, ``traces/name/n.json``, ``histograms/name/step.json`` |
    | log_audio, log_video, log_point_cloud | ``audio/..wav``, ``video/..mp4``, ``pointclouds/..ply`` |
    | upload_file | an artifact of the run, under the remote name |

    In names, characters that MLflow refuses become "_", and a hash is added (`mlflow_name`), so that different names stay
    different. NaN is kept; MLflow's databases replace an infinity by the largest number. MLflow rewrites a table at each
    log_table(): the background thread waits for that, the training does not.

    The run is made by MLflow's client, so ``mlflow.active_run()`` does not know it, and autologging uses a run of its own.
    ``overwrite=False`` checks whether the artifact exists. If two processes check at once, the later one replaces the other's
    artifact, as MLflow has no conditional upload. See `TrackerLogger` for threads, errors and the end.
    """

    package = "mlflow"
    _config: MLflowConfig

    def __init__(
        self,
        experiment: str | None = None,
        *,
        config: MLflowConfig | None = None,
        state: State | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(config or MLflowConfig(), state)
        self._experiment = experiment
        self._now = now
        self._waiting: deque[tuple[str, float, int, int]] = deque()  # name, value, ms since 1970, step
        self._params: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<MLflowLogger {self._experiment or ''}{' closed' if self._is_closed else ''}>"

    # what is logged

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Add parameters. A text longer than 6000 characters is cut, and stored whole in ``hyperparameters/name.txt``."""
        texts = {mlflow_name(name): text for name, text in _texts(hyperparameters)}
        n_bytes = sum(METRIC_BYTES + len(text) for text in texts.values())
        self._later("log_hyperparameters", lambda run: self._send_params(run, texts), n_bytes)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a point to each metric; `step=None` counts the calls. ValueError for what is not a number, after the others."""
        numbers, wrong = numbers_of(metrics)
        at, now_ms = self._step(step, "metrics"), int(self._now() * 1000)
        self._waiting.extend((mlflow_name(key), to_float(number), now_ms, at) for key, number in numbers.items())
        self._later("log_metrics", self._send_metrics, METRIC_BYTES * len(metrics))
        if wrong is not None:
            raise wrong

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Add a file for each trace."""
        for name, trace in traces.items():
            text = Text(str(name), format_json(trace, significant_digits=None))
            file = self._file("traces", text.name, self._step(None, f"trace {name}"), "json")
            send = partial(self._send_file, file=file, write=partial(_write, text))
            self._later("log_traces", send, len(text.text), key=text.name)

    def write(self, value: Value, step: int) -> None:
        """Have the background thread send the value; all kinds but images and tables are files."""
        match value:
            case Images():
                self._write_later(value, partial(self._send_images, value=value, step=step, now_ms=int(self._now() * 1000)))
            case Table():
                if value.rows:
                    self._write_later(value, partial(_send_table, value=value, step=step))
            case PointCloud():
                for cloud in value.clouds:
                    self._write_file(PointCloud(value.name, cloud[None]), step)
            case _:
                self._write_file(value, step)

    def _write_file(self, value: Value, step: int) -> None:
        folder, suffix = _FILES[value.kind]
        file = self._file(folder, value.name, step, suffix)
        self._write_later(value, partial(self._send_file, file=file, write=partial(_write, value)))

    # in the background threads

    def _send_metrics(self, run: MLflowRun) -> None:
        """Send all metrics that wait, also those of later calls, which then have nothing to send."""
        from mlflow.entities import Metric

        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_MAX_METRICS, len(self._waiting)))]
            run.client.log_batch(run.run_id, metrics=[Metric(*each) for each in batch])

    def _send_params(self, run: MLflowRun, texts: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        cut = {name: text[:_MAX_PARAM_CHARS] for name, text in texts.items()}
        new = [(name, text) for name, text in cut.items() if name not in self._params]
        changed = [(name, text) for name, text in cut.items() if self._params.get(name, text) != text]
        for start in range(0, len(new), _MAX_PARAMS):
            some = new[start : start + _MAX_PARAMS]
            run.client.log_batch(run.run_id, params=[Param(*each) for each in some])
            self._params.update(some)
        for name, text in changed:
            run.client.set_tag(run.run_id, name, text)
        for name, text in texts.items():
            if len(text) > _MAX_PARAM_CHARS:
                self._send_file(run, f"hyperparameters/{name}.txt", partial(_write, Text(name, text)))

    def _send_images(self, run: MLflowRun, value: Images, step: int, now_ms: int) -> None:
        labels = value.mask_class_labels
        for i, image in enumerate(value.images):
            suffix = f"/{i}" if len(value.shapes) > 1 else ""
            self._send_image(run, image, value.name + suffix, step, now_ms)
            for name, masks in value.masks.items():
                key = f"{value.name}/{name}{suffix}"
                self._send_image(run, mask_overlay(image, masks[i], labels), key, step, now_ms)
                png = encode.mask_png_bytes(masks[i], labels)
                self._send_file(run, self._file("masks", key, step, "png"), partial(Path.write_bytes, data=png))

    def _send_image(self, run: MLflowRun, image: NDArray[np.uint8], key: str, step: int, now_ms: int) -> None:
        name = mlflow_name(key, _REFUSED_IN_IMAGES, _MAX_IMAGE_NAME_BYTES)
        run.client.log_image(run.run_id, encode.picture(image), key=name, step=step, timestamp=now_ms, synchronous=True)

    def _send_file(self, run: MLflowRun, file: str, write: Callable[[Path], object]) -> None:
        folder, _, name = file.rpartition("/")
        with temporary_folder("wherry-mlflow-") as temporary:
            write(temporary / name)
            run.client.log_artifact(run.run_id, str(temporary / name), folder)

    def _file(self, kind: str, key: str, step: int, suffix: str) -> str:
        """The artifact's name; a second one of a step gets a number."""
        stem = f"{kind}/{mlflow_name(key)}/{step}"
        number = self._step(None, f"file {stem}.{suffix}")
        return f"{stem}-{number}.{suffix}" if number else f"{stem}.{suffix}"

    # the run and its files

    def _begin(self, state: State, name: str) -> MLflowRun:
        from mlflow.tracking.context.registry import resolve_tags

        client, run_id = self._known_run(name)
        if run_id is None:
            tags = resolve_tags(dict(self._config.tags))  # the user, the source and so on, as in any run of MLflow
            run = client.create_run(self._experiment_id(client), run_name=name or None, tags=tags)
            return MLflowRun(client, run.info.run_id)
        client.update_run(run_id, status="RUNNING")
        self._params.update(client.get_run(run_id).data.params)
        return MLflowRun(client, run_id)

    def _experiment_name(self) -> str:
        return self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"

    def _experiment_id(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        name = self._experiment_name()
        if (found := client.get_experiment_by_name(name)) is None:
            try:
                return str(client.create_experiment(name))
            except MlflowException:  # another process made it first
                if (found := client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def _known_run(self, name: str) -> tuple[MlflowClient, str | None]:
        """A client, and the id of the run to resume, if the config says how to find one."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self._config.tracking_uri)
        if self._config.run_id or not self._config.resume or not name:
            return client, self._config.run_id or None
        experiment = client.get_experiment_by_name(self._experiment_name())
        if experiment is None:
            return client, None
        if "'" in name:
            raise ConfigError(f"the run name {name!r} has a quote, by which MLflow cannot look it up: use another, or run_id")
        runs = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'", max_results=1)
        return client, runs[0].info.run_id if runs else None

    def _end(self, run: MLflowRun, *, failed: bool) -> None:
        run.client.set_terminated(run.run_id, "FAILED" if failed else "FINISHED")

    def _store(self, run: MLflowRun, remote_file_name: str, path: Path, *, overwrite: bool) -> None:
        if not overwrite and self._exists(run, remote_file_name):
            hint = "give overwrite=True, or another name"
            raise AlreadyExistsError("the run has such an artifact", operation="upload", uri=remote_file_name, hint=hint)
        if path.is_dir():
            run.client.log_artifacts(run.run_id, str(path), remote_file_name)
        else:
            run.client.log_artifact(run.run_id, str(path), remote_file_name.rpartition("/")[0] or None)

    def _fetch(self, remote_file_name: str, folder: Path, *, progress_bar: bool) -> Path:
        run = self._open()
        if run is None:  # on this rank: then rank 0's, if the config says how to find it
            client, run_id = self._known_run(self._run_name())
            run = None if run_id is None else MLflowRun(client, run_id)
        if run is None or not self._exists(run, remote_file_name):
            hint = "other runs are reached by MLflowConfig.run_id or resume"
            raise NotFoundError("the run has no such artifact", operation="download", uri=remote_file_name, hint=hint)
        with _progress(shown=progress_bar):
            return Path(run.client.download_artifacts(run.run_id, remote_file_name, str(folder)))

    def _exists(self, run: MLflowRun, remote_file_name: str) -> bool:
        found = run.client.list_artifacts(run.run_id, remote_file_name.rpartition("/")[0] or None)
        return remote_file_name in {one.path for one in found}

    def _translated(self, error: Exception, operation: str, uri: str) -> Exception:
        return _ERRORS.get(getattr(error, "error_code", ""), as_ours)(error, operation, uri)


def mlflow_name(key: object, refused: re.Pattern[str] = _REFUSED, max_bytes: int = 200) -> str:
    """The key as a name that MLflow accepts: letters, digits, spaces and ``_-./``, at most 250 (see also `safe_name`)."""
    name = safe_name(key, max_bytes)
    accepted = refused.sub("_", name)
    if accepted == name:
        return name
    return f"{accepted}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@contextmanager
def _progress(*, shown: bool) -> Iterator[None]:
    """Hide MLflow's progress bar, for which it has only an environment variable. If the user has set that, it stays."""
    if shown:
        yield
        return
    with _progress_lock:
        is_set = _PROGRESS in os.environ
        os.environ.setdefault(_PROGRESS, "false")
        try:
            yield
        finally:
            if not is_set:
                os.environ.pop(_PROGRESS, None)


def _texts(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in joined_names(settings):
        if value is None or isinstance(value, (bool, int, float, str)):
            yield name, str(value)
        else:
            text = format_json(value, significant_digits=None)
            yield name, json.loads(text) if text.startswith('"') else text


def _send_table(run: MLflowRun, value: Table, step: int) -> None:
    names = ["step"]
    for column in value.columns:
        names.append(free_name(column, names))
    cells = ([plain_cell(row[i]) for row in value.rows] for i in range(len(value.columns)))
    data = dict(zip(names, [[step] * len(value.rows), *cells], strict=True))
    with _progress(shown=False):  # of what MLflow reads to write the table anew
        run.client.log_table(run.run_id, data, f"tables/{mlflow_name(value.name)}.json")


def _write(value: Value, path: Path) -> None:
    """Write the file of a value, see `_FILES`."""
    match value:
        case Text():
            path.write_bytes(value.text.encode(errors="replace"))
        case Histogram():
            path.write_bytes(format_json(value.record(), significant_digits=None).encode())
        case Audio():
            path.write_bytes(encode.wav_bytes(value.samples, value.sample_rate_hz))
        case Video():
            encode.write_mp4(value.frames, value.frames_per_s, path)
        case PointCloud():
            path.write_bytes(encode.ply_bytes(value.clouds[0]))
