"""MLflowLogger: everything a run logs, in MLflow, by its own package (the extra ``mlflow``)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherry.errors import AccessDeniedError, AlreadyExistsError, ConfigError, NotFoundError, PermanentError, TransientError
from wherry.loggers.destinations.tracker import FIGURE_BYTES, TrackerConfig, TrackerLogger, as_ours, size_of
from wherry.loggers.run.state import State
from wherry.loggers.values import encode
from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.safe_name import safe_name
from wherry.loggers.values.tables import check_table
from wherry.loggers.values.text import format_json
from wherry.posix.fork import temporary_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient

#: MLflow's limits of one request, and of the text of a parameter.
_MAX_METRICS, _MAX_PARAMS, _MAX_PARAM_CHARS = 1000, 100, 6000
#: What MLflow refuses in names: in all, and in those of images.
_REFUSED, _REFUSED_IN_IMAGES = re.compile(r"[^\w\-./ ]"), re.compile(r"[^\w\-./ ]", re.ASCII)
#: MLflow makes one file name of an image's name, step, time and a number of its own.
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

    #: A server, or ``sqlite:///mlflow.db``. None: what MLflow takes, from MLFLOW_TRACKING_URI among others.
    tracking_uri: str | None = None
    #: Go on with this run.
    run_id: str | None = None
    #: Go on with the newest run of the experiment that has the run's name, if there is one. Off, as MLflow's names may be alike.
    resume: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MLflowRun:
    """A run that has begun, and whom to call for it."""

    client: MlflowClient
    run_id: str


class MLflowLogger(TrackerLogger[MLflowRun]):
    """Logs to a run of MLflow's `experiment`, which is made if it is missing; the run's name is the state's.

    | call | in MLflow |
    | --- | --- |
    | log_metrics | metrics, up to 1000 in a request; steps may go back |
    | log_hyperparameters | parameters, nested names joined by "/"; MLflow never changes one, so a new value becomes a tag |
    | log_images | the image grid; of several, "name/0" ...; masks drawn over them, "name/mask", and as ``masks/..png`` |
    | log_table | ``tables/name.json``, with a column "step"; ``mlflow.load_table`` reads it |
    | log_text, log_traces, log_histogram | ``text/name/step.txt``, ``traces/name/n.json``, ``histograms/name/step.json`` |
    | log_audio, log_video, log_point_cloud | ``audio/..wav``, ``video/..mp4``, ``pointclouds/..ply`` |
    | upload_file | an artifact of the run, under the remote name |

    In names, what MLflow refuses becomes "_" and a hash is added (`mlflow_name`), so different names stay different. NaN is kept;
    of infinity MLflow's databases make the largest number. MLflow writes a table anew for each log_table(): our thread waits
    for that, the training does not.

    The run is made with MLflow's client: ``mlflow.active_run()`` does not know it, and autologging has a run of its own.
    ``overwrite=False`` looks whether the artifact is there: of two processes that do so at once the later one wins, as MLflow
    has nothing better. See `TrackerLogger` for threads, errors and the end.
    """

    package = "mlflow"

    def __init__(
        self,
        experiment: str | None = None,
        *,
        config: MLflowConfig | None = None,
        state: State | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config or MLflowConfig()
        super().__init__(self._config, state)
        self._experiment = experiment
        self._now = now
        self._figures: deque[tuple[str, float, int, int]] = deque()  # name, value, ms since 1970, step
        self._params: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<MLflowLogger {self._experiment or ''}{' closed' if self._is_closed else ''}>"

    # what is logged

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Add parameters. A text of more than 6000 characters is cut there, and whole in ``hyperparameters/name.txt``."""
        texts = {mlflow_name(name): text for name, text in _flat(hyperparameters, "")}
        n_bytes = sum(FIGURE_BYTES + len(text) for text in texts.values())
        self._later("log_hyperparameters", lambda run: self._send_params(run, texts), n_bytes)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a point to each metric; `step=None` counts the calls. ValueError for what is no number, after the others."""
        at, now_ms = self._step(step, "metrics"), int(self._now() * 1000)
        wrong: list[str] = []
        for key, value in metrics.items():
            number = to_number(value)
            if number is None:
                wrong.append(str(key))
            else:
                self._figures.append((mlflow_name(key), _as_float(number), now_ms, at))
        self._later("log_metrics", self._send_figures, FIGURE_BYTES * len(metrics))
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: a metric is a number, or an array or tensor of one")

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
        """Add images, and their masks. ValueError for shapes that are none; of masks once the images are accepted."""
        encode.require("PIL.Image", "Pillow")
        from wherry.loggers.values.canonical import copy_images, to_images
        from wherry.loggers.values.masks import mask_overlay, masks_of

        key = str(name)
        given = copy_images(images, key, channels_last=channels_last or None)
        drawn, wrong = masks_of(masks, given, key)
        at, now_ms = self._step(step, f"images {key}"), int(self._now() * 1000)

        def write(run: MLflowRun) -> None:
            for i, picture in enumerate(to_images(given, key)):
                suffix = f"/{i}" if len(given) > 1 else ""
                self._send_image(run, picture, key + suffix, at, now_ms)
                for mask, labels in drawn.items():
                    over = mask_overlay(picture, labels[i], mask_class_labels)
                    self._send_image(run, over, f"{key}/{mask}{suffix}", at, now_ms)
                    content = encode.mask_png_bytes(labels[i], mask_class_labels)
                    self._send_file(run, self._file("masks", f"{key}/{mask}{suffix}", at, "png"), content)

        self._later("log_images", write, size_of(*given, *(one for labels in drawn.values() for one in labels)), key=key)
        if wrong is not None:
            raise wrong

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Add rows to the table of that name. ValueError for rows of another length; what is no number becomes text."""
        key = str(name)
        at = self._step(step, f"table {key}")
        cells = [[_cell(value) for value in row] for row in check_table(columns, rows, key)]
        names = dict.fromkeys(["step"])
        for column in columns:
            text = str(column)
            while text in names:
                text += "_"
            names[text] = None
        file = f"tables/{mlflow_name(key)}.json"

        def write(run: MLflowRun) -> None:
            data = dict(zip(names, [[at] * len(cells), *([row[i] for row in cells] for i in range(len(columns)))], strict=True))
            with _progress(shown=False):  # of what it reads to write it anew
                run.client.log_table(run.run_id, data, file)

        if cells:
            self._later("log_table", write, FIGURE_BYTES * len(cells) * (1 + len(columns)), key=key)

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Add a file for each."""
        for name, trace in traces.items():
            content = format_json(trace, significant_digits=None).encode()
            file = self._file("traces", str(name), self._step(None, f"trace {name}"), "json")
            self._later("log_traces", partial(self._send_file, file=file, content=content), len(content), key=str(name))

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Add a text."""
        content = str(text).encode(errors="replace")
        file = self._file("text", str(name), self._step(step, f"text {name}"), "txt")
        self._later("log_text", partial(self._send_file, file=file, content=content), len(content), key=str(name))

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Add a distribution of the finite ones of the values: edges (n + 1) and counts (n) of bins, and figures of all."""
        from wherry.loggers.values.canonical import to_histogram, to_values

        key = str(name)
        array = to_values(values, key)
        file = self._file("histograms", key, self._step(step, f"histogram {key}"), "json")

        def write(run: MLflowRun) -> None:
            found = to_histogram(array, key)
            record = {**vars(found), "edges": found.edges.tolist(), "counts": found.counts.tolist()}
            self._send_file(run, file, format_json(record, significant_digits=None).encode())

        self._later("log_histogram", write, size_of(array), key=key)

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Add a sound clip, as WAV."""
        from wherry.loggers.values.canonical import copy_audio, to_audio

        key = str(name)
        if not sample_rate_hz > 0:
            raise ValueError(f"{key}: sample_rate_hz is {sample_rate_hz}: it must be above 0")
        given = copy_audio(audio, key)
        file = self._file("audio", key, self._step(step, f"audio {key}"), "wav")

        def write(run: MLflowRun) -> None:
            self._send_file(run, file, encode.wav_bytes(to_audio(given, key), int(sample_rate_hz)))

        self._later("log_audio", write, size_of(given), key=key)

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = 12.0, step: int | None = None) -> None:
        """Add a video, as MP4."""
        encode.require("av", "PyAV")
        from wherry.loggers.values.canonical import copy_video, to_video

        key = str(name)
        if not 0 < frames_per_s < float("inf"):
            raise ValueError(f"{key}: frames_per_s is {frames_per_s}: it must be above 0")
        given = copy_video(video, key)
        file = self._file("video", key, self._step(step, f"video {key}"), "mp4")

        def write(path: Path) -> None:
            encode.write_mp4(to_video(given, key), frames_per_s, path)

        self._later("log_video", partial(self._send_file, file=file, content=write), size_of(given), key=key)

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Add a cloud of points; of a batch, a file for each."""
        from wherry.loggers.values.canonical import to_point_cloud

        key = str(name)
        at = self._step(step, f"points {key}")
        for cloud in to_point_cloud(points, key):
            file = self._file("pointclouds", key, at, "ply")
            self._later("log_point_cloud", partial(self._send_cloud, file=file, cloud=cloud), size_of(cloud), key=key)

    # our threads

    def _send_figures(self, run: MLflowRun) -> None:
        """Send all that wait, also those of later calls, which then find nothing to do."""
        from mlflow.entities import Metric

        while self._figures:
            figures = [self._figures.popleft() for _ in range(min(_MAX_METRICS, len(self._figures)))]
            run.client.log_batch(run.run_id, metrics=[Metric(*figure) for figure in figures])

    def _send_params(self, run: MLflowRun, texts: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        new = {name: text for name, text in texts.items() if name not in self._params}
        changed = {
            name: text
            for name, text in texts.items()
            if self._params.get(name, text[:_MAX_PARAM_CHARS]) != text[:_MAX_PARAM_CHARS]
        }
        for start in range(0, len(new), _MAX_PARAMS):
            some = list(new.items())[start : start + _MAX_PARAMS]
            run.client.log_batch(run.run_id, params=[Param(name, text[:_MAX_PARAM_CHARS]) for name, text in some])
            self._params.update((name, text[:_MAX_PARAM_CHARS]) for name, text in some)
        for name, text in changed.items():
            run.client.set_tag(run.run_id, name, text[:_MAX_PARAM_CHARS])
        for name, text in texts.items():
            if len(text) > _MAX_PARAM_CHARS:
                self._send_file(run, f"hyperparameters/{name}.txt", text.encode(errors="replace"))

    def _send_image(self, run: MLflowRun, picture: Any, key: str, step: int, now_ms: int) -> None:
        import numpy as np
        from PIL import Image

        name = mlflow_name(key, _REFUSED_IN_IMAGES, _MAX_IMAGE_NAME_BYTES)
        image = Image.fromarray(np.ascontiguousarray(picture[0] if len(picture) == 1 else np.moveaxis(picture, 0, -1)))
        run.client.log_image(run.run_id, image, key=name, step=step, timestamp=now_ms, synchronous=True)

    def _send_cloud(self, run: MLflowRun, file: str, cloud: Any) -> None:
        self._send_file(run, file, encode.ply_bytes(cloud))

    def _send_file(self, run: MLflowRun, file: str, content: bytes | Callable[[Path], object]) -> None:
        folder, _, name = file.rpartition("/")
        with temporary_folder("wherry-mlflow-") as temporary:
            path = temporary / name
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                content(path)
            run.client.log_artifact(run.run_id, str(path), folder)

    def _file(self, kind: str, key: str, step: int, suffix: str) -> str:
        """The artifact's name; a second one of the same step gets a number."""
        stem = f"{kind}/{mlflow_name(key)}/{step}"
        number = self._step(None, f"file {stem}.{suffix}")
        return f"{stem}-{number}.{suffix}" if number else f"{stem}.{suffix}"

    # the run and its files

    def _begin(self, state: State, name: str) -> MLflowRun:
        from mlflow import MlflowClient
        from mlflow.tracking.context.registry import resolve_tags

        client = MlflowClient(tracking_uri=self._config.tracking_uri)
        run_id = self._config.run_id or self._known_run(client, name)
        if run_id is None:
            tags = resolve_tags(dict(self._config.tags))  # the user, the source and so on, as for any run of MLflow
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
            except MlflowException:  # another process was faster
                if (found := client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def _known_run(self, client: MlflowClient, name: str) -> str | None:
        if not self._config.resume or not name:
            return None
        experiment = client.get_experiment_by_name(self._experiment_name())
        if experiment is None:
            return None
        if "'" in name:
            raise ConfigError(f"the run name {name!r} has a quote, by which MLflow cannot look it up: use another, or run_id")
        runs = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'", max_results=1)
        return runs[0].info.run_id if runs else None

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
        run = self._open() or self._run_elsewhere()
        if run is None or not self._exists(run, remote_file_name):
            hint = "other runs are reached by MLflowConfig.run_id or resume"
            raise NotFoundError("the run has no such artifact", operation="download", uri=remote_file_name, hint=hint)
        with _progress(shown=progress_bar):
            return Path(run.client.download_artifacts(run.run_id, remote_file_name, str(folder)))

    def _run_elsewhere(self) -> MLflowRun | None:
        """On a rank that has no run: rank 0's, if it can be known."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self._config.tracking_uri)
        run_id = self._config.run_id or self._known_run(client, self._run_name())
        return None if run_id is None else MLflowRun(client, run_id)

    def _exists(self, run: MLflowRun, remote_file_name: str) -> bool:
        found = run.client.list_artifacts(run.run_id, remote_file_name.rpartition("/")[0] or None)
        return remote_file_name in {one.path for one in found}

    def _translated(self, error: Exception, operation: str, uri: str) -> Exception:
        return _ERRORS.get(getattr(error, "error_code", ""), as_ours)(error, operation, uri)


def mlflow_name(key: object, refused: re.Pattern[str] = _REFUSED, max_bytes: int = 200) -> str:
    """The key as MLflow takes it: letters, digits, spaces and ``_-./``, no more than 250 of them (see also `safe_name`)."""
    name = safe_name(key, max_bytes)
    accepted = refused.sub("_", name)
    if accepted == name:
        return name
    return f"{accepted}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@contextmanager
def _progress(*, shown: bool) -> Iterator[None]:
    """Without the progress bar, which MLflow has a variable for and no argument. What the user has set, stays."""
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


def _flat(values: Mapping[Any, object], above: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}/")
        elif value is None or isinstance(value, (bool, int, float, str)):
            yield f"{above}{key}", str(value)
        else:
            text = format_json(value, significant_digits=None)
            yield f"{above}{key}", json.loads(text) if text.startswith('"') else text


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of a thousand bits
        return float("inf") if number > 0 else float("-inf")


def _cell(value: object) -> object:
    """What a cell of a table can hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    number = to_number(value)
    return format_json(value) if number is None else number
