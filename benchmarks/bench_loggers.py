"""What logging costs the training loop: figures, figures of a level that nobody wants, TensorBoard's events, media.

TensorBoard's stock writers are measured in the same run, where they are installed (``pip install tensorboard tensorboardX``).
Media: what the call takes on the training thread, each after the thread that encodes has finished, against a copy of the array.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from measure import folder, machine, seconds, spread, table

from wherry.loggers import (
    ConsoleLogger,
    FileConfig,
    FileLogger,
    Logger,
    LoggerDestination,
    LogLevel,
    RunFolderLogger,
    State,
    TensorBoardLogger,
)
from wherry.loggers.values import encode as encoders
from wherry.loggers.values.canonical import to_audio, to_images, to_video

ROUNDS = 7
CALLS = 2000
N = 20
TAGS = [f"layer{i}/norm" for i in range(N)]
FIGURES = {tag: 0.1 * i for i, tag in enumerate(TAGS)}


def state(name: str) -> State:
    return State(name, rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0)


def figures(base: Path) -> list[list[str]]:
    """Microseconds for a call with 20 figures."""
    kinds: dict[str, Callable[[str], list[LoggerDestination]]] = {
        "RunFolder": lambda name: [RunFolderLogger(base / name)],
        "TensorBoard": lambda name: [TensorBoardLogger(base / name)],
        "RunFolder and TensorBoard": lambda name: [RunFolderLogger(base / name), TensorBoardLogger(base / name / "tb")],
    }
    rows = []
    for kind, make in kinds.items():
        times = []
        for i in range(ROUNDS):
            with Logger(state("run"), make(f"{kind}{i}")) as logger:
                logger.log_metrics(FIGURES, 0)

                def work(logger: Logger = logger) -> None:
                    for step in range(1, CALLS + 1):
                        logger.log_metrics(FIGURES, step)

                times.append(seconds(work) / CALLS)
        goal = "100" if "and" in kind else ""
        rows.append([f"`log_metrics` of {N} figures to {kind}", spread(times, 1e6, 1), goal])
    return rows


def declined(base: Path) -> list[list[str]]:
    """Microseconds for a figure of a level that no destination wants; it is not computed."""
    config = FileConfig(capture_stdout=False, capture_stderr=False)
    calls = 100_000
    rows = []
    for names in ("File", "File and Console"):
        destinations: list[LoggerDestination] = [FileLogger(f"{names}.txt", folder=base, config=config)]
        if "Console" in names:
            destinations.append(ConsoleLogger(io.StringIO()))
        with Logger(state("run"), destinations) as logger:

            def work(logger: Logger = logger) -> None:
                for _ in range(calls):
                    logger.metric(LogLevel.VERBOSE, compute)

            times = [seconds(work) / calls for _ in range(ROUNDS)]
        rows.append([f"`metric` of a level that {names} decline{'' if 'and' in names else 's'}", spread(times, 1e6, 2), "1"])
    return rows


def compute() -> dict[str, float]:
    raise AssertionError("a declined figure is computed")


def events(base: Path) -> list[list[str]]:
    """Scalars a second, with a flush at the end."""
    n_steps = 500
    found: dict[str, list[float]] = {}

    def ours(path: Path, at_once: bool) -> None:
        with TensorBoardLogger(path, state=state("run")) as board:
            for step in range(n_steps):
                if at_once:
                    board.log_metrics(FIGURES, step)
                else:
                    for tag, value in FIGURES.items():
                        board.log_metrics({tag: value}, step)
            board.flush()

    def stock(path: Path, module: str) -> None:
        with import_module(module).SummaryWriter(str(path)) as writer:
            for step in range(n_steps):
                for tag, value in FIGURES.items():
                    writer.add_scalar(tag, value, step)
            writer.flush()

    makers: dict[str, Callable[[Path], None]] = {
        f"TensorBoardLogger, {N} a call": lambda path: ours(path, True),
        "TensorBoardLogger, one a call": lambda path: ours(path, False),
    }
    missing = []
    for module in ("torch.utils.tensorboard", "tensorboardX"):
        if find_spec("tensorboard" if module.startswith("torch") else module):
            import_module(module)
            makers[f"{module}, one a call"] = lambda path, module=module: stock(path, module)  # type: ignore[misc]
        else:
            missing.append([f"{module}", "not measured: it is not installed", ""])
    for i in range(ROUNDS):
        for j, (kind, make) in enumerate(makers.items()):
            path = base / f"events{i}-{j}"
            found.setdefault(kind, []).append(n_steps * N / seconds(lambda make=make, path=path: make(path)))  # type: ignore[misc]
    rows = [[kind, spread(speeds, 1e-3, 0), "100" if kind.endswith(f"{N} a call") else ""] for kind, speeds in found.items()]
    return [*rows, *missing]


def media(base: Path) -> list[list[str]]:
    """Milliseconds of a call on the training thread, against a copy of what is logged."""
    rng = np.random.default_rng(0)
    image = rng.random((3, 512, 512), np.float32)
    sound = (rng.random(44_100, np.float32) - 0.5) * 2
    video = rng.random((16, 3, 256, 256), np.float32)
    kinds: dict[str, tuple[np.ndarray, Callable[[LoggerDestination, int], None], Callable[[], object]]] = {
        "image, 3 x 512 x 512 float": (
            image,
            lambda one, step: one.log_images(image, step=step),
            lambda: encoders.png_bytes(to_images(image, "x")[0]),
        ),
        "sound, 1 s float": (
            sound,
            lambda one, step: one.log_audio(sound, step=step),
            lambda: encoders.wav_bytes(to_audio(sound, "x"), 44_100),
        ),
        "video, 16 x 3 x 256 x 256 float": (
            video,
            lambda one, step: one.log_video(video, step=step),
            lambda: encoders.write_mp4(to_video(video, "x"), 12, base / "x.mp4"),
        ),
    }
    rows = []
    with RunFolderLogger(base / "media") as run, TensorBoardLogger(base / "media-tb") as board:
        for kind, (array, log, encode) in kinds.items():
            copies, runs, boards, encodings = [], [], [], []
            for step in range(2 * ROUNDS):
                copies.append(seconds(lambda array=array: np.array(array)))  # type: ignore[misc]
                runs.append(seconds(lambda log=log, step=step: log(run, step)))  # type: ignore[misc]
                run.flush()
                boards.append(seconds(lambda log=log, step=step: log(board, step)))  # type: ignore[misc]
                board.flush()
            encodings = [seconds(encode) for _ in range(3)]
            ratio = statistics.median(runs) / statistics.median(encodings)
            rows.append([kind, *(spread(times, 1e3) for times in (copies, runs, boards, encodings)), f"{ratio:.3f}"])
    return rows


def main() -> None:
    with folder() as base:
        table(
            f"A call of the training loop, microseconds ({machine()})",
            ["call", "median [min-max]", "goal"],
            [*figures(base), *declined(base)],
        )
        table(
            f"Scalars into TensorBoard's event files, thousands a second ({machine()})",
            ["writer", "median [min-max]", "goal"],
            events(base),
        )
        table(
            f"Media on the training thread, ms ({machine()})",
            [
                "what",
                "a copy of the array",
                "call: RunFolder",
                "call: TensorBoard",
                "scaling and encoding",
                "RunFolder / encoding",
            ],
            media(base),
        )


if __name__ == "__main__":
    main()
