"""WherryCallback with Lightning's real Trainer, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from docs_programs import files_below
from support import end_agent, run_script
from wherry.loggers import Event, LoggerDestination, ObjectStoreLogger, RunFolderLogger, State

pytestmark = [
    pytest.mark.extra,
    # Lightning's own words about workers, GPUs and its logger; torch's about its own names.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

#: A script that trains; sys.argv: the package, and where to fail.
SCRIPT = """
import importlib, sys, torch

L = importlib.import_module(sys.argv[1])
from wherry.integrations.lightning import WherryCallback
from wherry.loggers import ObjectStoreLogger, RunFolderLogger

class Model(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        if str(self.global_step) == sys.argv[2]:
            raise RuntimeError("boom")
        loss = self.layer(batch).mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

L_callbacks = importlib.import_module(sys.argv[1] + (".pytorch" if sys.argv[1] == "lightning" else "") + ".callbacks")
callbacks = [
    WherryCallback(RunFolderLogger("runs/{run_name}"), ObjectStoreLogger("bucket"), run_name="" if len(sys.argv) > 3 else "r"),
    L_callbacks.ModelCheckpoint(),
    L_callbacks.OnExceptionCheckpoint("saved"),
]
options = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
if len(sys.argv) > 3:
    options |= {"strategy": "ddp", "devices": int(sys.argv[3])}
trainer = L.Trainer(max_epochs=2, log_every_n_steps=1, callbacks=callbacks, **options)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2))
"""


class Told(LoggerDestination):
    """Keeps the events, with the timestamps and phases."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, int, int, str]] = []

    def run_event(self, event: Event, state: State, logger: object) -> None:
        self.events.append((event.value, state.timestamp.epoch, state.timestamp.batch, state.phase))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "spool"))
    with end_agent(tmp_path / "spool"):
        yield tmp_path


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "bucket/r/metrics.jsonl").read_text().splitlines()]


def module() -> Any:
    import lightning

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch).mean()
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/loss", self.layer(batch).mean())

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test/loss", self.layer(batch).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


@pytest.mark.ci
def test_figures_hyperparameters_events_and_checkpoints_arrive(folder: Path) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wherry.integrations.lightning import WherryCallback

    told = Told()
    wherry = WherryCallback(RunFolderLogger("runs/{run_name}"), ObjectStoreLogger("bucket"), told, run_name="r")
    batches: Any = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)  # type: ignore[arg-type]
    only_newest = ModelCheckpoint("saved", filename="ep{epoch}", auto_insert_metric_name=False, save_top_k=1)
    options: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", log_every_n_steps=1, callbacks=[wherry, only_newest], **options)
    model = module()
    trainer.fit(model, batches, batches)
    trainer.test(model, batches)
    wherry.close()

    one_epoch = [("epoch_start", 0), ("batch_start", 0), ("batch_end", 1), ("batch_start", 1), ("batch_end", 2)]
    expected = [("init", 0, 0, "train"), ("fit_start", 0, 0, "train")]
    for epoch in (0, 1):
        expected += [(event, epoch, 2 * epoch + batch, "train") for event, batch in one_epoch]
        expected += [("eval_start", epoch, 2 * epoch + 2, "valid"), ("eval_end", epoch, 2 * epoch + 2, "train")]
        expected += [("epoch_end", epoch + 1, 2 * epoch + 2, "train")]
    expected += [("fit_end", 2, 4, "train"), ("eval_standalone_start", 2, 4, "test"), ("eval_standalone_end", 2, 4, "train")]
    assert expected == told.events

    lines = lines_of(folder)
    assert [0, 1, 2, 3] == [line["step"] for line in lines if "train/loss" in line]
    assert [("eval", 1), ("eval", 3)] == [(line["phase"], line["step"]) for line in lines if "val/loss" in line]
    assert [4] == [line["step"] for line in lines if "test/loss" in line]
    assert {"lr": 0.1} == json.loads((folder / "bucket/r/hparams.json").read_text())
    uploaded = {name for name in files_below(folder / "bucket") if "checkpoints" in name}
    assert {"r/checkpoints/ep0.ckpt", "r/checkpoints/ep1.ckpt"} == uploaded  # the first was deleted here meanwhile
    assert {"ep1.ckpt"} == files_below(folder / "saved")
    restored = torch.load(folder / "bucket/r/checkpoints/ep1.ckpt", weights_only=True)
    assert torch.equal(model.layer.weight, restored["state_dict"]["layer.weight"])


def batches() -> Any:
    return torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)  # type: ignore[arg-type]


def trainer_of(*callbacks: Any, **options: Any) -> Any:
    import lightning

    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    return lightning.Trainer(
        accelerator="cpu", callbacks=list(callbacks), **{"max_epochs": 1, "logger": False, **quiet, **options}
    )


def uploaded_to(folder: Path) -> dict[str, bytes]:
    below = folder / "bucket/r/checkpoints"
    return {name: (below / name).read_bytes() for name in files_below(below)}


def test_checkpoints_of_one_name_from_several_folders_are_all_kept(folder: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wherry.integrations.lightning import WherryCallback

    wherry = WherryCallback(ObjectStoreLogger("bucket"), run_name="r")
    kinds = {
        "first": ModelCheckpoint("first", filename="best", monitor="train/loss", every_n_train_steps=2),
        "a/second": ModelCheckpoint("a/second", filename="best", monitor="train/loss", mode="min"),
        "b/second": ModelCheckpoint("b/second", filename="best", monitor="train/loss", mode="max"),
    }
    trainer_of(wherry, *kinds.values()).fit(module(), batches())
    wherry.close()
    names = {"first": "best.ckpt", "a/second": "second/best.ckpt", "b/second": "b/second/best.ckpt"}
    expected = {name: (folder / place / "best.ckpt").read_bytes() for place, name in names.items()}
    assert expected == uploaded_to(folder)


def test_a_second_fit_keeps_the_checkpoints_of_the_first_and_its_own_replace_themselves(folder: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    from wherry.integrations.lightning import WherryCallback

    wherry = WherryCallback(ObjectStoreLogger("bucket"), run_name="r")
    for version in (0, 1):
        newest = ModelCheckpoint(filename="newest", enable_version_counter=False)  # written again in each epoch
        trainer_of(wherry, newest, max_epochs=2, logger=CSVLogger(".", version=version)).fit(module(), batches())
    wherry.close()
    uploaded = uploaded_to(folder)
    assert {"newest.ckpt", "checkpoints/newest.ckpt"} == set(uploaded)
    for version, name in enumerate(("newest.ckpt", "checkpoints/newest.ckpt")):
        local = folder / f"lightning_logs/version_{version}/checkpoints/newest.ckpt"
        assert local.read_bytes() == uploaded[name]


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_link_to_the_last_checkpoint_is_uploaded_as_that_checkpoint(folder: Path, epochs: int) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wherry.integrations.lightning import WherryCallback

    wherry = WherryCallback(ObjectStoreLogger("bucket"), run_name="r")
    trainer_of(wherry, ModelCheckpoint("saved", save_last="link"), max_epochs=epochs).fit(module(), batches())
    wherry.close()
    assert (folder / "saved/last.ckpt").is_symlink()
    assert (folder / "saved/last.ckpt").read_bytes() == uploaded_to(folder)["last.ckpt"]


def test_a_link_is_uploaded_when_the_training_fails_right_after_it(folder: Path) -> None:
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    from wherry.integrations.lightning import WherryCallback

    class Fails(Callback):  # type: ignore[misc]
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            saving.on_train_epoch_end(trainer, pl_module)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            raise RuntimeError("boom")

    saving = ModelCheckpoint("saved", save_last="link", save_on_train_epoch_end=True)
    wherry = WherryCallback(ObjectStoreLogger("bucket"), run_name="r")
    with pytest.raises(RuntimeError, match="boom"):
        trainer_of(wherry, Fails(), saving).fit(module(), batches())
    assert (folder / "saved/last.ckpt").read_bytes() == uploaded_to(folder)["last.ckpt"]


def test_settings_with_a_missing_one_are_logged(folder: Path) -> None:
    from omegaconf import OmegaConf

    from wherry.integrations.lightning import WherryCallback

    wherry = WherryCallback(RunFolderLogger("runs/{run_name}"), run_name="r")
    model = module()
    model.save_hyperparameters({"config": OmegaConf.create({"width": 3, "path": "???"})})
    trainer_of(wherry).fit(model, batches())
    wherry.close()
    assert {"lr": 0.1, "config": {"width": 3, "path": "???"}} == json.loads((folder / "runs/r/hparams.json").read_text())


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_at_the_end_of_the_program_everything_is_closed(folder: Path, package: str) -> None:
    run_script(SCRIPT, package, "never")
    assert [0, 1, 2, 3, 4, 5, 6, 7] == [line["step"] for line in lines_of(folder)]
    assert {"r/metrics.parquet", "r/checkpoints/epoch=1-step=8.ckpt"} <= files_below(folder / "bucket")


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_an_exception_closes_everything_after_the_last_checkpoint(folder: Path, package: str) -> None:
    said = run_script(SCRIPT, package, "5", expected=1)
    assert said.endswith("RuntimeError: boom\n")
    assert [0, 1, 2, 3, 4] == [line["step"] for line in lines_of(folder)]
    uploaded = files_below(folder / "bucket")
    assert {"r/metrics.parquet", "r/checkpoints/epoch=0-step=4.ckpt", "r/checkpoints/on_exception.ckpt"} <= uploaded


def test_of_two_ranks_one_logs_and_both_have_its_run_name(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT + "\nprint('name', callbacks[0].run_name, flush=True)\n")
    program = [sys.executable, "train.py", "lightning", "never", "2"]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=150)
    assert 0 == done.returncode, done.stderr
    (name,) = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("name ")}
    assert 2 == done.stdout.count(f"name {name}")
    assert [name] == [path.name for path in (folder / "bucket").iterdir()]
    lines = (folder / "bucket" / name / "metrics.jsonl").read_text().splitlines()
    assert [0, 1, 2, 3] == [json.loads(line)["step"] for line in lines]
    uploaded = {path for path in files_below(folder / "bucket" / name) if path.endswith(".ckpt")}
    assert {"checkpoints/epoch=0-step=2.ckpt", "checkpoints/epoch=1-step=4.ckpt"} == uploaded


def test_the_place_of_checkpoints_is_what_it_is_without_the_callback(folder: Path) -> None:
    run_script(SCRIPT, "lightning", "never")
    assert {"epoch=1-step=8.ckpt"} == files_below(folder / "checkpoints")


def test_async_checkpoints_are_refused_by_name(folder: Path) -> None:
    import lightning
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    from wherry.errors import ConfigError
    from wherry.integrations.lightning import WherryCallback

    wherry = WherryCallback(RunFolderLogger("runs/{run_name}"), run_name="r")
    options: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[wherry], plugins=[AsyncCheckpointIO()], **options)
    with pytest.raises(ConfigError, match="AsyncCheckpointIO"):
        trainer.fit(module(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))  # type: ignore[arg-type]
    wherry.close()


def test_importing_it_without_lightning_names_what_is_missing(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", hide + "import wherry.integrations.lightning"], capture_output=True, text=True, timeout=60
    )
    assert "pip install lightning" in done.stderr
