"""What TensorBoardLogger writes is what the real TensorBoard shows: by its server's answers, its own readers, and in a browser.

Needs TensorBoard, and Chromium with its driver (``apt-get install -y chromium chromium-driver``).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
import urllib.parse
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from browser import Browser, browser, local
from support import wait_until
from tfevents import event_files
from wherry.loggers import State
from wherry.loggers.destinations.tensorboard import TensorBoardConfig, TensorBoardLogger

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

RUN = "amber-inlet/tb/rank0"
N_STEPS, MEDIA_STEPS = 300, (0, 100, 200)
RED = (230, 40, 30)


def state_of(run_name: str) -> State:
    return State(run_name, rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0)


def log_everything(folder: Path) -> None:
    """A run with something of each kind, in several files."""
    rng = np.random.default_rng(0)
    config = TensorBoardConfig(max_file_bytes=50_000)
    with TensorBoardLogger(folder / "{run_name}" / "tb", config=config, state=state_of("amber-inlet")) as board:
        board.log_hyperparameters({"lr": 3e-4, "optimizer": {"name": "adamw", "betas": [0.9, 0.95]}, "amp": True, "layers": 12})
        for step in range(N_STEPS):
            loss = math.exp(-step / 80) + 0.04 * rng.standard_normal()
            board.log_metrics({"train/loss": loss, "train/accuracy": 1 - math.exp(-step / 60)}, step)
            board.log_metrics({"unusual/nan and infinity": (math.nan, math.inf, float(step))[step % 3]}, step)
        for step in MEDIA_STEPS:
            pictures, masks = zip(*(scene(step + shift) for shift in (0, 15, 30)), strict=True)
            board.log_images(pictures, "samples", step=step, masks={"truth": masks}, mask_class_labels={3: "sun", 7: "ground"})
            board.log_video(np.stack([scene(step + frame)[0] for frame in range(0, 60, 3)]), "walk", 10, step)
            board.log_histogram(rng.normal(step / 50, 1 + step / 200, 5000), "weights/layer 1", step)
            board.log_audio(np.sin(2 * np.pi * (220 + step) * np.arange(22_050) / 22_050) * 0.5, "tone", 22_050, step)
            board.log_point_cloud(torus(rng, 4000), "torus", step)
            board.log_text(f"The **quick** brown fox, at step {step}", "samples/prompt", step)
            board.log_table(["id", "text <b>", "p"], [[1, "a|b *c*", 0.5], [2, "x\ny", None]], "samples/predictions", step)
        board.log_traces({"schedule": {"warmup": 100, "kind": "cosine"}})


def scene(at: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A red sun over the ground, 3 x 96 x 96, and the mask of the two."""
    y, x = np.mgrid[0:96, 0:96]
    sun = (x - 20 - at % 60) ** 2 + (y - 30) ** 2 < 144
    ground = y > 66 + 6 * np.sin(x / 12)
    picture = np.stack([140 + 0 * y, 180 - y // 2, 230 - y])
    picture[:, sun] = np.array(RED)[:, None]
    picture[:, ground] = np.array([70, 110, 60])[:, None]
    return picture.astype(np.uint8), np.where(sun, 3, np.where(ground, 7, 0))


def torus(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Points on it: n x 3."""
    around, across = rng.random((2, n)) * 2 * np.pi
    radius = 2 + np.cos(across)
    return np.stack([np.cos(around) * radius, np.sin(around) * radius, np.sin(across)], axis=-1)


class Server:
    """TensorBoard's HTTP API, as its own pages use it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: object) -> bytes:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with local.open(f"{self.url}data/{path}{query}", timeout=60) as answer:
            return bytes(answer.read())

    def json(self, path: str, **parameters: object) -> Any:
        return json.loads(self.get(path, **parameters))

    def scalars(self, run: str, tag: str) -> list[tuple[int, float]]:
        return [(step, value) for _, step, value in self.json("plugin/scalars/scalars", run=run, tag=tag)]

    def ended_sessions(self) -> list[Any]:
        wanted = {"colParams": [], "startIndex": 0, "sliceSize": 10, "allowedStatuses": ["STATUS_SUCCESS"]}
        found = self.json("plugin/hparams/session_groups", request=json.dumps(wanted))
        return list(found.get("sessionGroups", ()))


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[Server]:
    """The real server at its default flags, on a free port."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder.name, "--host", "127.0.0.1", "--port", "0"]
    said = []
    # Its fast loader is a process of its own, which a proxy would be asked for; without it the server would silently be another.
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=folder.parent, env=environment, stdout=pipe, stderr=both, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                if found := re.search(r" at (http://127\.0\.0\.1:\d+/)", line):
                    yield Server(found[1])
                    return
            raise AssertionError("TensorBoard did not start: " + "".join(said))
        finally:
            process.terminate()
            process.stdout.read()


def wait_for_run(server: Server) -> None:
    """Wait for what is written last: that the session has ended."""
    wait_until(server.ended_sessions, 60.0, "TensorBoard to read the run, of which it tells nobody")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    log_everything(folder)
    assert len(event_files(folder)) > 3
    return folder


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    with tensorboard(runs) as server:
        wait_for_run(server)
        yield server


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser() as page:
        yield page


# the server's answers


def test_curves_of_several_files_are_whole(server: Server) -> None:
    points = server.scalars(RUN, "train/accuracy")
    assert list(range(N_STEPS)) == [step for step, _ in points]
    assert all(math.isclose(1 - math.exp(-step / 60), value, rel_tol=1e-6, abs_tol=1e-7) for step, value in points)


def test_nan_and_infinity_are_points(server: Server) -> None:
    points = server.scalars(RUN, "unusual/nan and infinity")
    assert [value for _, value in points[2::3]] == [float(step) for step in range(2, N_STEPS, 3)]
    assert ["{'NaN'}", "{'Infinity'}"] == [str({value for _, value in points[start::3]}) for start in (0, 1)]  # JSON has neither


def test_images_masks_and_videos_are_images(server: Server) -> None:
    tags = server.json("plugin/images/tags")[RUN]
    samples, truths = [[f"{name}/{number}" for number in range(3)] for name in ("samples", "samples/truth")]
    assert dict.fromkeys([*samples, *truths, "walk"], 1) == {tag: info["samples"] for tag, info in tags.items()}
    assert "3 sun: #808000" in tags["samples/truth/0"]["description"]
    for tag, expected in {"samples/0": "PNG", "samples/truth/0": "PNG", "walk": "GIF"}.items():
        shown = server.json("plugin/images/images", run=RUN, tag=tag, sample=0)
        assert list(MEDIA_STEPS) == [one["step"] for one in shown]
        data = server.get(f"plugin/images/individualImage?{shown[1]['query']}")
        with Image.open(io.BytesIO(data)) as picture:
            assert (expected, (96, 96)) == (picture.format, picture.size)
            if tag == "samples/0":
                np.testing.assert_array_equal(np.moveaxis(scene(MEDIA_STEPS[1])[0], 0, -1), np.asarray(picture))
            if tag == "walk":
                assert 20 == getattr(picture, "n_frames")  # noqa: B009


def test_texts_tables_and_traces_are_texts(server: Server) -> None:
    def latest(tag: str) -> str:
        return str(server.json("plugin/text/text", run=RUN, tag=tag)[-1]["text"])

    assert "The <strong>quick</strong> brown fox, at step 200" in latest("samples/prompt")
    table = latest("samples/predictions")
    for cell in ("<th>text &lt;b&gt;</th>", "<td>a|b *c*</td>", "<td>null</td>"):
        assert cell in table
    assert re.search(r"<td>x<br\s*/?>y</td>", table)
    assert '<pre><code>{"warmup": 100, "kind": "cosine"}' in latest("traces/schedule").replace("&quot;", '"')
    assert re.search(r"<td>lr</td>\s*<td>0.0003</td>", latest("hyperparameters"))


def test_histograms_have_their_buckets(server: Server) -> None:
    found = server.json("plugin/histograms/histograms", run=RUN, tag="weights/layer 1")
    assert list(MEDIA_STEPS) == [step for _, step, _ in found]
    for _, step, buckets in found:
        left, right, counts = np.array(buckets).T
        assert 5000 == counts.sum()
        mean = float((counts * (left + right) / 2).sum() / 5000)
        assert math.isclose(step / 50, mean, abs_tol=0.2)


def test_sound_can_be_played(server: Server) -> None:
    (first, *_) = server.json("plugin/audio/audio", run=RUN, tag="tone", sample=0)
    assert "audio/wav" == first["contentType"]
    data = server.get(f"plugin/audio/individualAudio?{first['query']}")
    with wave.open(io.BytesIO(data)) as sound:
        assert (22_050, 22_050) == (sound.getframerate(), sound.getnframes())


def test_points_are_a_mesh(server: Server) -> None:
    assert {"torus": {"samples": 1}} == server.json("plugin/mesh/tags")[RUN]
    found = server.json("plugin/mesh/meshes", run=RUN, tag="torus", sample=0)
    assert [(step, [1, 4000, 3]) for step in MEDIA_STEPS] == [(one["step"], one["data_shape"]) for one in found]
    data = server.get("plugin/mesh/data", run=RUN, tag="torus", content_type="VERTEX", sample=0, step=100)
    points = np.frombuffer(data, np.float32).reshape(-1, 3)
    distance = (np.hypot(points[:, 0], points[:, 1]) - 2) ** 2 + points[:, 2] ** 2
    np.testing.assert_allclose(np.ones(4000), distance, rtol=1e-4)


def test_hyperparameters_are_one_session_with_its_metrics_and_no_other_run(server: Server) -> None:
    assert [RUN] == server.json("runs")
    (group,) = server.ended_sessions()
    expected = {"lr": 3e-4, "optimizer/name": "adamw", "optimizer/betas": "[0.9, 0.95]", "amp": True, "layers": 12}
    assert (RUN, expected) == (group["name"], group["hparams"])
    metrics = {metric["name"]["tag"]: metric["trainingStep"] for metric in group["metricValues"]}
    assert N_STEPS - 1 == metrics["train/loss"]


# what the class says of TensorBoard


def test_a_live_run_is_followed_through_its_files_and_steps_that_go_back_are_a_restart(tmp_path: Path) -> None:
    config = TensorBoardConfig(max_file_bytes=500)
    board = TensorBoardLogger(tmp_path / "{run_name}", config=config, state=state_of("live"))
    board.log_metrics({"a": -1.0}, 0)
    with tensorboard(tmp_path) as server:
        wait_until(lambda: "live/rank0" in server.json("runs"), 60.0, "TensorBoard to find the run")
        for step in range(50):
            board.log_metrics({"a": 1.0}, step)
        assert len(event_files(tmp_path)) > 3
        expected = [(step, 1.0) for step in range(50)]
        wait_until(lambda: expected == server.scalars("live/rank0", "a"), 60.0, "TensorBoard to read on, every 5 s by default")
        for step in (20, 21, 22, 22):
            board.log_metrics({"a": 2.0 + step}, step)
        board.close()
        expected = [*expected[:20], (20, 22.0), (21, 23.0), (22, 24.0)]
        wait_until(lambda: expected == server.scalars("live/rank0", "a"), 60.0, "TensorBoard to read on, every 5 s by default")


def test_tensorboards_own_reader_agrees(runs: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    reader = EventAccumulator(str(runs / RUN), size_guidance={"tensors": 0})
    reader.Reload()
    plugins = {tag: reader.SummaryMetadata(tag).plugin_data.plugin_name for tag in reader.Tags()["tensors"]}
    assert {
        "train/loss": "scalars",
        "train/accuracy": "scalars",
        "unusual/nan and infinity": "scalars",
        **{f"{name}/{number}": "images" for name in ("samples", "samples/truth") for number in range(3)},
        "walk": "images",
        "weights/layer 1": "histograms",
        "tone": "audio",
        "torus_VERTEX": "mesh",
        "samples/prompt": "text",
        "samples/predictions": "text",
        "traces/schedule": "text",
        "hyperparameters": "text",
        "_hparams_/session_start_info": "hparams",
        "_hparams_/session_end_info": "hparams",
    } == plugins
    losses = reader.Tensors("train/accuracy")
    assert list(range(N_STEPS)) == [event.step for event in losses]
    assert np.float32(1 - math.exp(-100 / 60)) == tensor_util.make_ndarray(losses[100].tensor_proto)
    assert (64, 3) == tensor_util.make_ndarray(reader.Tensors("weights/layer 1")[0].tensor_proto).shape


def test_readers_of_event_files_find_images_sound_and_histograms(runs: Path) -> None:
    """As they find SummaryWriter's: this reader makes no tensors of what has a field of its own."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(runs / RUN), size_guidance={"images": 0, "audio": 0, "histograms": 0})
    reader.Reload()
    tags = reader.Tags()
    assert {f"{name}/{number}" for name in ("samples", "samples/truth") for number in range(3)} | {"walk"} == set(tags["images"])
    assert (["tone"], ["weights/layer 1"]) == (tags["audio"], tags["histograms"])
    image, sound, values = reader.Images("samples/0"), reader.Audio("tone"), reader.Histograms("weights/layer 1")
    assert [list(MEDIA_STEPS)] * 3 == [[event.step for event in events] for events in (image, sound, values)]
    with Image.open(io.BytesIO(image[1].encoded_image_string)) as picture:
        assert (image[1].width, image[1].height) == picture.size
        np.testing.assert_array_equal(np.moveaxis(scene(MEDIA_STEPS[1])[0], 0, -1), np.asarray(picture))
    assert (22_050, 22_050, "audio/wav") == (sound[0].sample_rate, sound[0].length_frames, sound[0].content_type)
    distribution = values[0].histogram_value
    assert (5000, 64, 5000) == (distribution.num, len(distribution.bucket_limit), sum(distribution.bucket))


# what is seen


def pixels(picture: bytes) -> NDArray[np.int16]:
    """The part of the page below its head and right of its side bar, as n x 3."""
    with Image.open(io.BytesIO(picture)) as opened:
        return np.asarray(opened.convert("RGB"), np.int16)[115:, 360:].reshape(-1, 3)


def n_near(picture: bytes, colour: tuple[int, int, int], distance: int = 25) -> int:
    """How many pixels have about this colour."""
    return int((np.abs(pixels(picture) - colour).max(axis=1) <= distance).sum())


RUN_COLOUR = (255, 112, 67)
_DEEP = """
    const deep = (root, selector) => [...root.querySelectorAll(selector),
        ...[...root.querySelectorAll('*')].filter(e => e.shadowRoot).flatMap(e => deep(e.shadowRoot, selector))];
"""


def shows(page: Browser, condition: str) -> bool:
    """Whether the JavaScript condition holds; deep(document, selector) finds elements inside components, too."""
    return bool(page.run(f"{_DEEP} return Boolean({condition});"))


def has_text(text: str) -> str:
    return f"deep(document, 'td, th, p, div, span').some(e => e.textContent.includes({json.dumps(text)}))"


#: Of each dashboard: what must be seen, in the picture or in the page.
DASHBOARDS: dict[str, Callable[[Browser], bool]] = {
    "timeseries": lambda page: n_near(page.screenshot(), (66, 80, 102)) > 700,
    "scalars": lambda page: n_near(page.screenshot(), RUN_COLOUR) > 700,
    "images": lambda page: n_near(page.screenshot(), RED) > 10_000,
    "histograms": lambda page: n_near(page.screenshot(), RUN_COLOUR) > 3000,
    "distributions": lambda page: n_near(page.screenshot(), RUN_COLOUR) > 500,
    "mesh": lambda page: n_near(page.screenshot(), RUN_COLOUR) > 3000,
    "audio": lambda page: shows(page, "deep(document, 'audio').some(e => Math.abs(e.duration - 1) < 0.01)"),
    "text": lambda page: shows(page, f"{has_text('a|b *c*')} && {has_text('quick')}"),
    "hparams": lambda page: shows(page, f"{has_text('layers')} && {has_text('12.000')} && {has_text(RUN)}"),
}


def picture_of(dashboard: str, page: Browser, server: Server) -> bytes:
    page.open("about:blank")  # another #fragment of one page loads nothing
    page.open(f"{server.url}?tagFilter=train#{dashboard}")  # the time series: all kinds in one page, begin with images else
    wait_until(lambda: DASHBOARDS[dashboard](page), 60.0, f"the {dashboard} dashboard to show what was logged")
    return page.screenshot()


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_a_browser_shows_what_was_logged(dashboard: str, server: Server, page: Browser, tmp_path: Path) -> None:
    picture = picture_of(dashboard, page, server)
    (tmp_path / f"{dashboard}.png").write_bytes(picture)  # where pytest keeps it, for who wants to look
