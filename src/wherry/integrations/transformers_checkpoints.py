"""CheckpointCallback for the Hugging Face Trainer: each `checkpoint-N` folder is a set, and a restart finds the newest."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.prune import Pruner
from wherry.checkpoints.restore import DamagedSetError
from wherry.checkpoints.retention import Retention
from wherry.checksum import crc32c_of_file
from wherry.errors import ConfigError, MissingExtraError, NotFoundError
from wherry.integrations.shared_files import files_below, own_names

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtraError("this callback is for the Hugging Face Trainer: pip install 'transformers[torch]'") from error

log = logging.getLogger("wherry.checkpoints")

_STATE = "trainer_state.json"


class CheckpointCallback(TrainerCallback):  # type: ignore[misc]  # its class is unknown where transformers is not installed
    """Saves each `checkpoint-N` folder as the set of step N, and brings the newest one back::

        saved = CheckpointCallback(wherry.Checkpoints("s3://my-bucket/project", "my-run"))
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[saved])
        trainer.train(resume_from_checkpoint=saved.resume())

    A folder is copied to the spool when all ranks have written their files into it; the upload goes on while training does. Files
    of all nodes are in the set, each name once. Its metrics are what the Trainer has logged for that step: `eval_loss`, `loss`.
    With `save_total_limit=n` at most n sets stay in the bucket, too: the newest, and with `load_best_model_at_end` the best. The
    end of the training waits until all sets are committed, and raises what `Checkpoints.flush` raises.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._args: Any = None
        self._prunes: Retention | None = None

    # -- what the Trainer calls

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the arguments, for resume()."""
        self._args = args
        limit = args.save_total_limit or 0
        if limit > 0 and self.checkpoints.world.rank == 0:
            self._prunes = Retention(lambda: self._pruner(_keep(args, limit)))

    def _pruner(self, keep: Keep) -> Pruner:
        catalog = self.checkpoints.catalog
        return Pruner(catalog.store, catalog.keys, keep=keep, own=self.checkpoints.attempt)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Hand this rank's files of the folder over, once all ranks have written theirs."""
        step = int(state.global_step)
        folder = Path(args.output_dir, f"checkpoint-{step}")
        args.distributed_state.wait_for_everyone()
        part = self.checkpoints.part(
            step, metrics=_metrics(state.log_history, step), metadata={"saved_by": "transformers"}, overwrite=True
        )
        with part.giving_up():
            for name in self._own_files(folder):
                part.put(folder / name, name)
        part.hand_over()
        if self._prunes is not None:
            self._prunes.saved()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait until all sets are committed, and pruned."""
        self.checkpoints.flush()
        if self._prunes is not None:
            self._prunes.finish()

    def _own_files(self, folder: Path) -> list[str]:
        """The files that this rank puts into the set: of each name that several nodes have, the first node's file."""
        world = self.checkpoints.world
        return own_names(world, files_below(folder) if world.local_rank == 0 else [])

    # -- coming back

    def resume(self) -> str | None:
        """Restore the newest complete set to the Trainer's `output_dir` and return its folder; None if there is no set.

        For `trainer.train(resume_from_checkpoint=...)`. All ranks call it after the Trainer was made, and get the same set. If it
        is damaged, all get the newest one before it that is whole, and an error in the log says so. A folder that is there
        already is used if its files are those of the set, byte by byte, and replaced if not. With `load_best_model_at_end` the
        best set is restored, too. One rank of each node downloads; where the nodes share `output_dir`, only rank 0. Raises what
        `Checkpoints.restore` raises, and RuntimeError if that happened on another rank.
        """
        if self._args is None:
            raise ConfigError("resume() needs to know the output_dir: make the Trainer with this callback first")
        checkpoints = self.checkpoints
        newest = checkpoints.latest()
        tried: set[SetName] = set()
        while newest is not None:
            try:
                folder = self._bring_back(newest)
                break
            except DamagedSetError as error:
                log.error("the set %s is damaged, the one before it is restored: %s", newest.set, error)
                tried.add(newest.set)
            newest = checkpoints.world.agree(self._newest_but(tried) if checkpoints.world.rank == 0 else None)
        if newest is None:
            return None
        checkpoints.parent = newest.set
        if getattr(self._args, "load_best_model_at_end", False) and (best := self._best(folder, newest)) is not None:
            self._bring_back(best)
        return str(folder)

    def _newest_but(self, tried: set[SetName]) -> Manifest | None:
        catalog = self.checkpoints.catalog
        return next((one for one in catalog.newest_first() if one.set not in tried and not catalog.missing(one)), None)

    def _best(self, folder: Path, newest: Manifest) -> Manifest | None:
        """The best set, as rank 0 finds it in the state that was restored; None if it is the newest, or is not there."""

        def find() -> Manifest | None:
            step = json.loads((folder / _STATE).read_text()).get("best_global_step")
            if not isinstance(step, int) or step == newest.step:
                return None
            try:
                return self.checkpoints.find(step)
            except NotFoundError:
                return None

        return self.checkpoints.world.agree(find() if self.checkpoints.world.rank == 0 else None)

    def _bring_back(self, manifest: Manifest) -> Path:
        """Have the set in its folder on each node."""
        world, folder = self.checkpoints.world, Path(self._args.output_dir, f"checkpoint-{manifest.step}")
        for is_turn in (world.rank == 0, world.local_rank == 0 and world.rank != 0):  # rank 0 first: nodes may share the folder
            failed: Exception | None = None
            if is_turn:
                try:
                    self._restore_to(folder, manifest)
                except Exception as error:  # whatever it is, the other ranks wait for a word about it
                    failed = error
            said = world.gather(
                None if failed is None else (isinstance(failed, DamagedSetError), f"{type(failed).__name__}: {failed}")
            )
            if failed is not None:
                raise failed
            for rank, (is_damaged, text) in ((rank, one) for rank, one in enumerate(said) if one is not None):
                kind = DamagedSetError if is_damaged else RuntimeError
                raise kind(f"rank {rank} could not restore the set {manifest.set}: {text}")
        return folder

    def _restore_to(self, folder: Path, manifest: Manifest) -> None:
        if self._is_in(folder, manifest):
            return
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self.checkpoints.alone() as alone:
            alone.restore(str(manifest.set), folder)

    def _is_in(self, folder: Path, manifest: Manifest) -> bool:
        """Whether the folder holds exactly the set's files, with the same bytes."""
        if not folder.is_dir():
            return False
        saved = {one.name: one for _, one in self.checkpoints.catalog.objects(manifest)}
        if set(files_below(folder)) != set(saved):
            return False
        return all(
            (folder / name).stat().st_size == one.size_bytes and crc32c_of_file(folder / name) == one.crc32c
            for name, one in saved.items()
        )


def _keep(args: Any, limit: int) -> Keep:
    """The sets that the Trainer would keep of so many folders."""
    metric = args.metric_for_best_model
    if not args.load_best_model_at_end or metric is None:
        return Keep(last=limit)
    name = metric if metric.startswith("eval_") else f"eval_{metric}"
    return Keep(last=max(1, limit - 1), best=1, metric=name, mode="max" if args.greater_is_better else "min")


def _metrics(history: list[dict[str, Any]], step: int) -> dict[str, float]:
    """The finite numbers that were logged for this step."""
    found: dict[str, float] = {}
    for entry in history:
        if entry.get("step") == step:
            found.update({name: float(value) for name, value in entry.items() if isinstance(value, (int, float))})
    return {name: value for name, value in found.items() if math.isfinite(value) and name != "step"}
