"""WandbLogger: logs everything to Weights & Biases through its own package (the extra ``wandb``)."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from wherry.errors import AccessDeniedError, AlreadyExistsError, ConfigError, NotFoundError, TransientError
from wherry.loggers.destinations.tracker import METRIC_BYTES, TrackerConfig, TrackerLogger, as_ours, numbers_of
from wherry.loggers.run.state import State
from wherry.loggers.values import encode
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video
from wherry.loggers.values.safe_name import safe_name
from wherry.loggers.values.tables import free_name, plain_cell
from wherry.loggers.values.text import as_text, format_json
from wherry.posix.fork import temporary_folder

if TYPE_CHECKING:
    from wandb import Run

_Mode = Literal["online", "offline", "shared", "disabled"]
#: W&B writes these itself into each record, and replaces what has such a name.
_TAKEN = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
_MAX_ARTIFACT_NAME = 128
#: W&B stores tables and some media in artifacts called "run-<id>-<name>".
_MAX_MEDIA_BYTES = 90
_NOT_IN_ARTIFACT_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_ENDS_IN_HASH = re.compile(r"-[0-9a-f]{8}\Z")


@dataclass(frozen=True)
class WandbConfig(TrackerConfig):
    """How a WandbLogger works. ConfigError for values that make no sense."""

    #: The user or team. None, here and below: what the environment or the login says.
    entity: str | None = None
    #: "offline" writes files that ``wandb sync`` uploads later.
    mode: _Mode | None = None
    #: The folder in which W&B makes its folder ``wandb``.
    folder: str | None = None
    #: The run's id. If there is a run with it, that run is resumed.
    run_id: str | None = None
    #: The metric that is the horizontal axis of all others. W&B's own step is not used, as W&B drops what is logged when that
    #: goes back.
    step_metric: str = "step"
    artifact_type: str = "file"
    #: Other arguments of ``wandb.init``: ``{"group": "ablation", "notes": "..."}``.
    init_options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode is not None and self.mode not in get_args(_Mode):
            known = ", ".join(map(repr, get_args(_Mode)))
            raise ConfigError(f"WandbConfig.mode is {self.mode!r}: use one of {known}, or None for what the environment says")
        if not isinstance(self.step_metric, str) or not self.step_metric or self.step_metric in _TAKEN:
            raise ConfigError(f"WandbConfig.step_metric is {self.step_metric!r}: use a name that is not W&B's own")
        if not isinstance(self.init_options, Mapping):
            raise ConfigError(
                f"WandbConfig.init_options is {self.init_options!r}: give a mapping, such as {{'group': 'ablation'}}"
            )
        if given := {"project", "name", "entity", "mode", "dir", "id", "resume"} & set(self.init_options):
            raise ConfigError(f"WandbConfig.init_options has {sorted(given)}: these have fields or arguments of their own")


class WandbLogger(TrackerLogger["Run"]):
    """Logs to a run of W&B's `project`, which has the state's run name::

        with WandbLogger("my-project", config=WandbConfig(mode="offline")) as log:
            log.log_metrics({"loss": 0.5}, step=1)

    | call | in W&B |
    | --- | --- |
    | log_metrics | charts over ``step`` (`WandbConfig.step_metric`); steps may go back |
    | log_hyperparameters | the run's config; later values replace earlier ones |
    | log_images | images with masks to switch on and off; with `use_table` rows of a table (W&B shows 108 of a list) |
    | log_table, log_histogram, log_audio, log_video, log_point_cloud | Table, Histogram, Audio, Video (MP4), Object3D |
    | log_text, log_traces | Html, shown verbatim; traces under "traces/name" |
    | alert | an alert, which W&B sends by mail or Slack, at most one a minute of a title |
    | upload_file | an artifact; each upload of a name is a new version, the newest is "latest" |

    Names are kept as they are given, with three exceptions. W&B's own (``_step``, ``_runtime`` ...) and the step's get a "_"
    appended. Names of media are paths (see `safe_name`). Names of artifacts are made by `artifact_name`; the artifact's metadata
    has the remote name, which is also the path of its file. NaN and infinities are kept.

    What several calls log for one step, including media, is one row of W&B's history. W&B shows the row when the next step is
    logged, at flush() or at the close. If a name is logged twice for a step, the second value starts another row.

    If a run of W&B is already active, it is used, and not ended at the close. ``overwrite=False`` checks whether the artifact
    exists. If two processes check at once, both upload, and nothing is lost, as each upload is a version. Offline, only what
    this process uploaded can be found and downloaded. See `TrackerLogger` for threads, errors and the end.
    """

    package = "wandb"
    _config: WandbConfig

    def __init__(self, project: str | None = None, *, config: WandbConfig | None = None, state: State | None = None) -> None:
        super().__init__(config or WandbConfig(), state)
        self._project = project
        self._is_ours = True
        self._row_step: int | None = None
        self._row_names: set[str] = set()
        #: Remote name -> artifact, of what this process uploaded; the files are in W&B's own staging folder.
        self._uploaded: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<WandbLogger {self._project or ''}{' closed' if self._is_closed else ''}>"

    # what is logged

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Update the run's config. Values that JSON does not know become text."""
        values = json.loads(format_json(dict(hyperparameters), significant_digits=None))
        self._later("log_hyperparameters", lambda run: run.config.update(values, allow_val_change=True))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a point to each chart; `step=None` counts the calls. ValueError for what is not a number, after the others."""
        numbers, wrong = numbers_of(metrics)
        at, record = self._step(step, "metrics"), dict[str, object]()
        for key, number in numbers.items():
            record[free_name(key, _TAKEN, (self._config.step_metric,), record)] = number
        if record:
            self._later("log_metrics", lambda run: self._add_to_row(run, record, at), METRIC_BYTES * (1 + len(record)))
        if wrong is not None:
            raise wrong

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Add each trace as a text, shown verbatim."""
        for name, trace in traces.items():
            text = Text(f"traces/{name}", as_text(trace))
            write = self._writing(text, self._step(None, f"text {text.name}"))
            self._later("log_traces", write, METRIC_BYTES + text.size_bytes, key=text.name)

    def alert(self, title: str, text: str = "", level: str = "WARN") -> None:
        """Have W&B send an alert. W&B itself drops an alert of a title that it had in the last minute."""
        self._later("alert", lambda run: run.alert(title, text, level), METRIC_BYTES + len(title) + len(text), key=title)

    def write(self, value: Value, step: int) -> None:
        """Have the background thread make W&B's object of the value, and log it."""
        self._write_later(value, self._writing(value, step))

    def flush(self) -> None:
        """Return when W&B has everything logged so far, and all files have arrived. Later values are in another row.

        Raises UploadFailed for files that failed, else the first error of a log call that was not raised yet.
        """
        if (run := self._run) is not None and not self._is_closed and self._pid == os.getpid():
            self._calls.submit(partial(self._do, "flush", self._end_row, run, None))
        super().flush()

    # inside

    def _add_to_row(self, run: Run, values: Mapping[str, object], step: int) -> None:
        """Add to the row of a step. Another step, or a name that the row already has, begins a new one: no value is replaced.

        W&B's service keeps the open row, and ends it with the run. W&B's own steps count the rows, as it drops what is logged
        with a step that goes back. Only one thread at a time may call; none of the values may have the name of the step.
        """
        if step != self._row_step or not self._row_names.isdisjoint(values):
            self._end_row(run)
        run.log({**values, self._config.step_metric: step}, commit=False)
        self._row_step = step
        self._row_names.update(values)

    def _end_row(self, run: Run) -> None:
        if self._row_step is not None:
            self._row_step = None
            self._row_names.clear()
            run.log({}, commit=True)

    def _writing(self, value: Value, step: int) -> Callable[[Run], None]:
        name = free_name(safe_name(value.name, _MAX_MEDIA_BYTES), _TAKEN, (self._config.step_metric,))

        def write(run: Run) -> None:
            with temporary_folder("wherry-wandb-") as folder:
                self._add_to_row(run, {name: _made(value, folder)}, step)

        return write

    def _begin(self, state: State, name: str) -> Run:
        import wandb

        config, before = self._config, wandb.run
        options: dict[str, Any] = {
            "project": self._project,
            "name": name or None,
            "entity": config.entity,
            "mode": config.mode,
            "dir": os.path.abspath(config.folder) if config.folder else None,  # W&B's service may have another directory
            "id": config.run_id,
            "resume": "allow" if config.run_id else None,
        }
        if not config.rank_zero_only and state.run_name and "group" not in config.init_options:
            options["group"] = state.run_name
        run = wandb.init(**options, **config.init_options)
        self._is_ours = run is not before
        run.define_metric(config.step_metric)
        run.define_metric("*", step_metric=config.step_metric)
        return run

    def _end(self, run: Run, *, failed: bool) -> None:
        self._end_row(run)
        if self._is_ours:
            run.finish(exit_code=1 if failed else 0)

    def _store(self, run: Run, remote_file_name: str, path: Path, *, overwrite: bool) -> None:
        import wandb

        name = artifact_name(remote_file_name)
        if not overwrite and (remote_file_name in self._uploaded or self._exists(name)):
            raise AlreadyExistsError(
                f"the artifact {name} exists", operation="upload", uri=remote_file_name, hint="overwrite=True adds a version"
            )
        artifact = wandb.Artifact(name, self._config.artifact_type, metadata={"remote_file_name": remote_file_name})
        if path.is_dir():
            artifact.add_dir(str(path), name=remote_file_name)
        else:
            artifact.add_file(str(path), name=remote_file_name)
        run.log_artifact(artifact)
        self._uploaded[remote_file_name] = artifact
        if self._is_online(run):
            artifact.wait()

    def _fetch(self, remote_file_name: str, folder: Path, *, progress_bar: bool) -> Path:
        import wandb

        name = artifact_name(remote_file_name)
        if self._is_online(self._run):
            if not self._exists(name):
                raise NotFoundError(f"there is no artifact {name}", operation="download", uri=remote_file_name)
            wandb.Api().artifact(f"{self._path(name)}:latest").download(root=str(folder))
        elif (artifact := self._uploaded.get(remote_file_name)) is None:
            hint = "W&B is offline, and this process did not upload it"
            raise NotFoundError("there is no such artifact here", operation="download", uri=remote_file_name, hint=hint)
        else:  # W&B keeps the files of an upload until it can send them
            for path, entry in artifact.manifest.entries.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(entry.local_path, folder / path)
        return folder / remote_file_name

    def _exists(self, name: str) -> bool:
        import wandb

        return self._is_online(self._run) and bool(wandb.Api().artifact_exists(f"{self._path(name)}:latest"))

    def _path(self, name: str) -> str:
        entity, project = (self._run.entity, self._run.project) if self._run else (self._config.entity, self._project)
        return "/".join(part for part in (entity, project, name) if part)

    def _is_online(self, run: Run | None) -> bool:
        """Whether W&B's server is reached. On ranks that started no run: what the W&B settings say."""
        import wandb

        mode = run.settings.mode if run is not None else self._config.mode or wandb.setup().settings.mode
        return mode in ("online", "shared")

    def _translated(self, error: Exception, operation: str, uri: str) -> Exception:
        from wandb.errors import AuthenticationError, CommError, UsageError

        if isinstance(error, AuthenticationError):
            return as_ours(error, operation, uri, AccessDeniedError)
        if isinstance(error, CommError):
            return as_ours(error, operation, uri, TransientError)
        return ConfigError(f"{operation} {uri}: {error}") if isinstance(error, UsageError) else as_ours(error, operation, uri)


def artifact_name(remote_file_name: str) -> str:
    """The name of the artifact: the remote name with ``.`` for all but letters, digits, ``-``, ``_`` and ``.``.

    If that changes the name, or if it is longer than 128, a hash of the remote name is added, so that different names stay
    different.
    """
    name = _NOT_IN_ARTIFACT_NAMES.sub(".", remote_file_name)
    if name == remote_file_name and len(name) <= _MAX_ARTIFACT_NAME and not _ENDS_IN_HASH.search(name):
        return name
    digest = hashlib.sha256(remote_file_name.encode()).hexdigest()[:8]
    return f"{name[: _MAX_ARTIFACT_NAME - len(digest) - 1]}-{digest}"


def _made(value: Value, folder: Path) -> object:
    """W&B's object of a value; `folder` is for its files."""
    import numpy as np
    import wandb

    match value:
        case Text():
            return wandb.Html(f"<pre>{html.escape(value.text)}</pre>", inject=False)
        case Table():
            cells = [[plain_cell(cell) for cell in row] for row in value.rows]
            return wandb.Table(columns=value.columns, data=cells, allow_mixed_types=True)
        case Images():
            images = _made_images(value, folder)
            return wandb.Table(columns=["image"], data=[[image] for image in images]) if value.use_table else images
        case Histogram():
            found = value.data()
            return wandb.Histogram(np_histogram=(found.counts, found.edges))
        case Audio():
            (folder / "audio.wav").write_bytes(encode.wav_bytes(value.samples, value.sample_rate_hz))
            return wandb.Audio(str(folder / "audio.wav"))
        case Video():
            encode.write_mp4(value.frames, value.frames_per_s, folder / "video.mp4")
            return wandb.Video(str(folder / "video.mp4"), format="mp4")
        case PointCloud():
            return [wandb.Object3D(cloud[np.isfinite(cloud).all(axis=1)]) for cloud in value.clouds]


def _made_images(value: Images, folder: Path) -> list[Any]:
    import wandb

    labels = {"class_labels": value.mask_class_labels} if value.mask_class_labels else {}
    made = []
    for i, image in enumerate(value.images):
        path = folder / f"{i}.png"
        path.write_bytes(encode.png_bytes(image))
        masks = {name: {"mask_data": several[i], **labels} for name, several in value.masks.items()}
        made.append(wandb.Image(str(path), masks=masks or None))
    return made
