"""Makes the pictures and excerpts of docs/destinations.md from runs of examples/train_all.py.

``python tests/extra/make_pictures.py docs`` takes some minutes. It needs what the tests marked "extra" need. The
pictures are to be looked at before they are kept.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import socket
import subprocess
import sys
import tempfile
import termios
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image, ImageChops
from rich.console import Console
from rich.text import Text
from test_tensorboard_server import RUN_COLOUR, n_near, tensorboard, wait_for_run

from browser import Browser, browser, local
from support import end_agent, wait_until
from wandb_records import history

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "train_all.py"
RUN = "shapes"
COLUMNS, ROWS = 100, 46
#: JavaScript: deep(document, selector) finds elements inside components, too.
_DEEP = """
    const deep = (root, selector) => [...root.querySelectorAll(selector),
        ...[...root.querySelectorAll('*')].filter(e => e.shadowRoot).flatMap(e => deep(e.shadowRoot, selector))];
"""
#: Dashboard of TensorBoard -> what is true when it shows the run.
DASHBOARDS = {
    "scalars": "deep(document, 'svg path, canvas').length > 8",
    "images": """
    ['learning', 'shapes/0', 'shapes/prediction/0', 'shapes/truth/0'].every(tag => deep(document, 'tf-image-loader').some(
        e => e.tag === tag && deep(e.shadowRoot, 'img').some(
            one => one.naturalWidth > 20 && one.width > 100 && one.getBoundingClientRect().bottom < window.innerHeight)))
    """,
    "histograms": "deep(document, 'svg path').length > 8",
    "mesh": "deep(document, 'canvas').length > 0",
    "text": "deep(document, 'td').some(e => e.textContent.includes('AdamW'))",
    "hparams": "deep(document, 'td, div').some(e => e.textContent.includes('optimizer'))",
    "audio": "deep(document, 'audio').some(e => e.duration > 1)",
}

#: Dashboard -> what is changed in it until it shows the run: of the four images of each name one is left, a little narrower, and
#: of the names those that have an image, masks drawn over it, or a video. So all of these are in the picture.
CHANGED = {
    "images": """
    deep(document, 'tf-image-loader').forEach(e => { e.style.display = /[/][1-9]$/.test(e.tag) ? 'none' : ''; });
    deep(document, 'tf-image-loader').forEach(e => { e.style.maxWidth = '320px'; });
    deep(document, 'tf-category-paginated-view').filter(e => e.category.name === 'typed').forEach(e => e.style.display = 'none');
    """
}
#: Those of which it takes a look whether they are drawn.
DRAWN = ("scalars", "histograms", "mesh")


def train(folder: Path, *options: str, expected: int = 0) -> str:
    """Run the example in a terminal of our own; what it wrote there."""
    environment = {**os.environ, "TERM": "xterm-256color", "WHERRY_SPOOL": str(folder / "spool"), "WANDB_SILENT": "true"}
    environment |= {"WANDB_DATA_DIR": str(folder / "wandb-data"), "MLFLOW_LOGGING_LEVEL": "ERROR"}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    command = [sys.executable, str(EXAMPLE), str(folder / "bucket"), *options]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # Linux says so when the last writer has closed
                break
            said += block
        assert expected == process.wait(), said.decode(errors="replace")
    os.close(ours)
    return said.decode(errors="replace")


# pictures


def screen(said: str) -> list[str]:
    """What a terminal shows of it at the end, a line each, with colours: bars that were written over are seen once."""
    lines: list[list[str]] = [[]]
    row = column = 0
    style = ""
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", said, re.DOTALL):
        if token.startswith("\x1b"):
            number = int(token[2:-1]) if token[2:-1].isdigit() else 1
            if token.endswith("m"):
                style = "" if token in ("\x1b[0m", "\x1b[m") else style + token
            elif token.endswith("A"):
                row = max(0, row - number)
            elif token.endswith("K"):
                del lines[row][column:]
        elif token == "\r":
            column = 0
        elif token == "\n":
            row += 1
        else:
            if column == COLUMNS:  # a terminal goes on in the next line when there is something to go on with
                row, column = row + 1, 0
            lines += [[] for _ in range(row + 1 - len(lines))]
            line = lines[row]
            line += [" "] * (column + 1 - len(line))
            line[column] = f"{style}{token}\x1b[0m" if style else token
            column += 1
        lines += [[] for _ in range(row + 1 - len(lines))]
    return ["".join(line).rstrip() for line in lines]


def terminal_picture(said: str, path: Path) -> None:
    """Its first page, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(screen(said)[:ROWS])))
    console.save_svg(str(path), title="python examples/train_all.py /tmp/bucket")
    path.write_text(re.sub(r"[ \t]+$", "", path.read_text(), flags=re.MULTILINE))


def masks_picture(run: Path, path: Path) -> None:
    """An image, its mask and the prediction of it, as they lie in the run folder, four times as large."""
    names = ("images/shapes/90-0.png", "masks/shapes/truth/90-0.png", "masks/shapes/prediction/90-0.png")
    pictures = [Image.open(run / "media" / name).convert("RGB").resize((192, 192), Image.Resampling.NEAREST) for name in names]
    row = Image.new("RGB", (192 * 3 + 16, 192), "white")
    for place, picture in enumerate(pictures):
        row.paste(picture, (place * 200, 0))
    row.save(path, optimize=True)


def tensorboard_pictures(runs: Path, folder: Path) -> None:
    """One of each dashboard."""
    with tensorboard(runs) as server, browser(1440, 1250) as page:
        wait_for_run(server)
        for dashboard, condition in DASHBOARDS.items():
            page.open("about:blank")  # another #fragment of one page loads nothing
            page.open(f"{server.url}#{dashboard}")
            script = f"{_DEEP} {CHANGED.get(dashboard, '')} return Boolean({condition.strip()});"
            wait_until(lambda script=script: bool(page.run(script)), 60.0, dashboard)  # type: ignore[misc]
            if dashboard in DRAWN:
                wait_until(lambda: n_near(page.screenshot(), RUN_COLOUR) > 400, 60.0, f"{dashboard} to be drawn")
            save(settled(page), folder / f"tensorboard-{dashboard}.png")


@contextmanager
def mlflow_server(database: Path) -> Iterator[str]:
    """The real server, on a free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}", "--port", str(port)]
    with subprocess.Popen(command, cwd=database.parent.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: answers(f"{url}/health"), 90.0, "MLflow's server")
            yield url
        finally:
            process.terminate()


def answers(url: str) -> bool:
    """Whether somebody does."""
    try:
        with local.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def mlflow_picture(folder: Path, path: Path) -> None:
    """The figures of the run in MLflow's own pages, without the window of its assistant and the charts' buttons."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'shapes'")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{RUN}'")
    with mlflow_server(folder / "runs" / "mlflow.db") as url, browser(1440, 745) as page:
        where = f"{url}/#/experiments/{urllib.parse.quote(experiment.experiment_id)}/runs/{run.info.run_id}/model-metrics"
        page.open(where)
        page.run("document.head.insertAdjacentHTML('beforeend', '<style>.modebar {display: none !important}</style>')")
        page.wait_for("document.querySelectorAll('.js-plotly-plot svg.main-svg').length > 4", "MLflow to draw the curves")
        page.run('document.querySelectorAll(\'[aria-label="Close"], [aria-label="Close assistant"]\').forEach(e => e.click())')
        save(settled(page), path)


def settled(page: Browser) -> bytes:
    """A picture of the page when three in a row are the same: nothing tells when its animations are over."""
    pictures = [page.screenshot(), page.screenshot()]

    def is_settled() -> bool:
        pictures.append(page.screenshot())
        return pictures[-3] == pictures[-2] == pictures[-1]

    wait_until(is_settled, 30.0, "the page to stand still")
    return pictures[-1]


def save(content: bytes, path: Path) -> None:
    """As PNG of the 256 colours that are nearest, which takes half of the space, without an empty lower part."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    column = picture.crop((picture.width // 4, 0, picture.width, picture.height))
    empty = Image.new("RGB", column.size, column.getpixel((column.width - 5, column.height - 5)))
    box = ImageChops.difference(column, empty).getbbox()
    bottom = min(picture.height, max(400, (box[3] if box else 0) + 16))
    picture.crop((0, 0, picture.width, bottom)).quantize(256, kmeans=3).save(path, optimize=True)
    print(path, path.stat().st_size)


# excerpts


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def file_excerpt(folder: Path) -> str:
    """The beginning and the end of a run that failed."""
    lines = lines_of(folder / "failed" / "runs" / RUN / "log.txt")
    begin = next(i for i, line in enumerate(lines) if line.startswith("[hyperparameter]"))
    end = next(i for i, line in enumerate(lines) if line.startswith("[exception]"))
    shown = [*lines[begin : begin + 4], "...", *lines[end - 4 :]]
    return "\n".join(line.replace(str(EXAMPLE), "examples/train_all.py")[:140] for line in shown)


_NOTEBOOK = """
import runpy, sys
names = runpy.run_path(sys.argv[1])
memory = names["InMemoryLogger"]()
with names["Logger"](names["State"]("shapes"), memory) as logger:
    names["train"](logger, 1, fail=False)
shown = ["memory.hyperparameters", "memory.series('train/loss').values[-3:]",
         "memory.to_pandas()[['train/loss', 'eval/iou_box']].tail(3)",
         "memory.tables['overlap'][-1].value.rows[0]", "memory.images['shapes'][-1].value.images[0].shape",
         "memory.images['shapes'][-1].value.masks['truth'][0].shape", "memory.audio['loss'][-1].value.sample_rate_hz"]
for one in shown:
    print(">>>", one)
    print(eval(one))
"""


def memory_excerpt(folder: Path) -> str:
    """What an InMemoryLogger has after an epoch."""
    return subprocess.run(
        [sys.executable, "-c", _NOTEBOOK, str(EXAMPLE)], capture_output=True, text=True, check=True, cwd=folder
    ).stdout.rstrip()


def tree_excerpt(folder: Path) -> str:
    """The files of the run folder; of many of a kind the first."""
    run = folder / "runs" / RUN
    shown: list[str] = []
    for path in sorted([run, *run.rglob("*")], key=lambda path: path.relative_to(run).parts):
        if path.is_dir():
            files = sorted(one.name for one in path.iterdir() if one.is_file())
            if files:
                names = files if len(files) <= 8 else [*files[:2], f"... {len(files) - 2} more"]
                shown.append(f"{path.relative_to(folder)}/".ljust(44) + "  ".join(names))
    return "\n".join(shown)


def jsonl_excerpt(folder: Path) -> str:
    """Some lines of the run folder."""
    run = folder / "runs" / RUN
    metrics = lines_of(run / "metrics.jsonl")
    evaluation = next(line for line in metrics if '"phase"' in line)
    index = lines_of(run / "media" / "index.jsonl")
    mask = next(line for line in index if '"mask"' in line)
    table = lines_of(run / "tables" / "overlap.jsonl")[-1]
    return "\n".join(
        [
            *(f"metrics.jsonl         {line}" for line in (metrics[0], evaluation)),
            f"tables/overlap.jsonl  {table}",
            *(f"media/index.jsonl     {shortened(line)}" for line in (index[0], mask)),
        ]
    )


def shortened(line: str) -> str:
    """With a short checksum."""
    return re.sub(r'("sha256": "\w{6})\w+', r"\1...", line)


def progress_excerpt(said: str) -> str:
    """The bars."""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen(said)]
    return "\n".join(line for line in plain if re.match(r"(epoch \d+|eval):", line))


def bucket_excerpt(folder: Path) -> str:
    """What ``wherry ls -r`` says of some of it."""
    command = [sys.executable, "-m", "wherry.cli", "ls", "-r", f"{folder / 'bucket'}/{RUN}/"]
    environment = {**os.environ, "WHERRY_SPOOL": str(folder / "spool")}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    some = ("checkpoints/", "log.txt", "hparams", "metrics.", "tables/", "audio", "video", "tfevents", "90-0.png")
    return "\n".join(line.replace(f"{folder}", "/tmp") for line in said.splitlines() if any(one in line for one in some))


def wandb_excerpt(folder: Path) -> str:
    """Of each kind the first record of W&B's own file."""
    shown: dict[str, str] = {}
    for record in history(folder / "runs"):
        names = [name for name in record if not name.startswith("_") and name != "step"]
        kind = record[names[0]].get("_type", "") if isinstance(record[names[0]], dict) else names[0]
        record = {name: record[name] for name in ("step", *names)}
        shown.setdefault(kind, shortened(json.dumps(record))[:150])
    return "\n".join(shown.values())


def mlflow_excerpt(folder: Path) -> str:
    """The artifacts that are no copies of other destinations' files."""
    (root,) = (folder / "mlruns").rglob("artifacts")
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    own = [name for name in names if not name.startswith(f"{RUN}/") or "checkpoints" in name]
    return "\n".join(name for name in own if "images/" not in name and "/30" not in name and "/60" not in name)


def with_excerpts(page: str, excerpts: dict[str, str]) -> str:
    """The page with each of them between its marks."""
    for name, text in excerpts.items():
        marks = rf"(<!-- of the example: {name} -->\n\n```\w*\n).*?(```\n)"
        page, n = re.subn(marks, lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page, flags=re.DOTALL)  # type: ignore[misc]
        assert n == 1, f"the page has {n} places for the excerpt {name!r}"
    return page


def main(docs: Path) -> None:
    """Make them all."""
    with tempfile.TemporaryDirectory() as parent, end_agent(Path(parent) / "spool"):
        folder = Path(parent)
        said = train(folder, "--run-name", RUN)
        (folder / "failed").mkdir()
        with end_agent(folder / "failed" / "spool"):
            train(folder / "failed", "--run-name", RUN, "--fail", expected=1)
        excerpts = {
            "file": file_excerpt(folder),
            "memory": memory_excerpt(folder),
            "progress": progress_excerpt(said),
            "tree": tree_excerpt(folder),
            "lines": jsonl_excerpt(folder),
            "bucket": bucket_excerpt(folder),
            "wandb": wandb_excerpt(folder),
            "mlflow": mlflow_excerpt(folder),
        }
        page = docs / "destinations.md"
        page.write_text(with_excerpts(page.read_text(), excerpts))
        terminal_picture(said, docs / "images" / "terminal.svg")
        masks_picture(folder / "runs" / RUN, docs / "images" / "run-folder-masks.png")
        tensorboard_pictures(folder / "runs", docs / "images")
        mlflow_picture(folder, docs / "images" / "mlflow.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
