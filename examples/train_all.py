"""A small training, logged in every way: all kinds of values to all destinations, and everything into a bucket.

    python examples/train_all.py /tmp/bucket            # or s3://my-bucket, gs://my-bucket
    python examples/train_all.py /tmp/bucket --fail     # ends by an exception, which the log ends with

A network of three layers learns to find disks and boxes in noise; a minute at most on a CPU. Needs ``pip install torch
'wherry[media]'``; Weights & Biases (offline) and MLflow (a local database) take part where they are installed.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

try:
    import torch
except ImportError as error:
    raise SystemExit("this example needs PyTorch: pip install torch 'wherry[media]'") from error

from wherry.loggers import (
    ConsoleLogger,
    Event,
    FileLogger,
    InMemoryLogger,
    Logger,
    LoggerDestination,
    MultiLogger,
    ObjectStoreLogger,
    ProgressBarConfig,
    ProgressBarLogger,
    RunFolderLogger,
    State,
    TensorBoardLogger,
)
from wherry.loggers.typed import DestinationSink, Sinks

CLASSES = {0: "nothing", 1: "disk", 2: "box"}
COLOURS = torch.tensor([[0.15, 0.15, 0.2], [0.9, 0.5, 0.1], [0.1, 0.5, 0.9]])
SIZE, BATCHES, EVAL_BATCHES, BATCH = 48, 30, 5, 16


def samples(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy pictures (B,3,H,W) of a disk and a box each, and the class of each pixel (B,H,W)."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    at = torch.randint(10, SIZE - 10, (BATCH, 4, 1, 1), generator=generator)
    mask = torch.zeros(BATCH, SIZE, SIZE, dtype=torch.long)
    mask[(y - at[:, 0]) ** 2 + (x - at[:, 1]) ** 2 < 64] = 1
    mask[((y - at[:, 2]).abs() < 6) & ((x - at[:, 3]).abs() < 6)] = 2
    pictures = COLOURS[mask].movedim(-1, 1)
    return pictures + 0.15 * torch.randn(pictures.shape, generator=generator), mask


def overlap(predicted: torch.Tensor, mask: torch.Tensor, label: int) -> float:
    """Intersection over union of a class."""
    both, either = ((predicted == label) & (mask == label)).sum(), ((predicted == label) | (mask == label)).sum()
    return float(both / either.clamp(min=1))


def destinations(bucket: str, memory: InMemoryLogger) -> list[LoggerDestination]:
    """All that there are. Any one of these lines attaches one."""
    found: list[LoggerDestination] = [
        FileLogger("{run_name}/log.txt", folder="runs"),
        ConsoleLogger(sys.stderr),  # where the bars are: between two streams the terminal would keep no order
        ProgressBarLogger(config=ProgressBarConfig(batches_per_epoch=BATCHES, eval_batches=EVAL_BATCHES)),
        memory,
        RunFolderLogger("runs/{run_name}"),
        TensorBoardLogger("runs/{run_name}/tb"),
        ObjectStoreLogger(bucket),  # takes the files of all the others, too
    ]
    if find_spec("wandb"):
        from wherry.loggers import WandbConfig, WandbLogger

        found.append(WandbLogger("shapes", config=WandbConfig(mode="offline", folder="runs")))
    if find_spec("mlflow"):
        from wherry.loggers import MLflowConfig, MLflowLogger

        found.append(MLflowLogger("shapes", config=MLflowConfig(tracking_uri="sqlite:///runs/mlflow.db")))
    return found


def train(logger: Logger, epochs: int, *, fail: bool) -> None:
    """The loop."""
    state = logger.state
    settings = {"optimizer": {"name": "AdamW", "lr": 3e-3}, "epochs": epochs, "batch": BATCH, "size": SIZE}
    logger.log_hyperparameters(settings)
    generator = torch.Generator().manual_seed(0)
    layers = [torch.nn.Conv2d(3, 24, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv2d(24, 24, 5, padding=2), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Conv2d(24, len(CLASSES), 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    logger.log_text(f"```\n{model}\n```", "model")

    # The typed API: values are functions, computed only for the steps that are written: once a second.
    typed, sinks = MultiLogger(default_namespace="typed"), Sinks([DestinationSink(logger)])
    shown, shown_mask = samples(torch.Generator().manual_seed(1))
    frames, losses = [], []

    for epoch in range(epochs):
        logger.run_event(Event.EPOCH_START)
        for _ in range(BATCHES):
            pictures, mask = samples(generator)
            loss = torch.nn.functional.cross_entropy(model(pictures), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            logger.log_metrics({"train/loss": losses[-1]})
            typed.log_scalar("weight_norm", lambda: sum(p.detach().norm().item() for p in model.parameters()))
            typed.log_images("filters", lambda: model[0].weight, max_images=16, sep=1)
            sinks.step(state, typed)
            state.timestamp = state.timestamp.to_next_batch(samples=BATCH)
            logger.run_event(Event.BATCH_END)
        state.timestamp = state.timestamp.to_next_epoch()
        logger.run_event(Event.EPOCH_END)

        state.phase = "valid"
        logger.run_event(Event.EVAL_START)
        with torch.no_grad():
            rows = []
            for _ in range(EVAL_BATCHES):
                pictures, mask = samples(generator)
                predicted = model(pictures).argmax(1)
                rows.append([overlap(predicted, mask, label) for label in CLASSES])
                logger.run_event(Event.EVAL_BATCH_END)
            scores = torch.tensor(rows).mean(0).tolist()
            predicted = model(shown).argmax(1)
            hidden = model[:4](shown).movedim(1, -1)  # (B,H,W,24)
        logger.log_metrics({f"eval/iou_{name}": score for name, score in zip(CLASSES.values(), scores, strict=True)})
        masks = {"truth": shown_mask[:4], "prediction": predicted[:4]}
        logger.log_images(shown[:4], "shapes", masks=masks, mask_class_labels=CLASSES)
        logger.log_table(["class", "iou"], list(zip(CLASSES.values(), scores, strict=True)), "overlap")
        logger.log_histogram(model[0].weight, "first layer")
        logger.log_point_cloud(torch.pca_lowrank(hidden.reshape(-1, 24)[::10], 3)[0], "hidden")
        logger.log_traces({"memory": {"parameters": sum(p.numel() for p in model.parameters()), "epoch": epoch}})
        frames.append(torch.cat([shown[0].clamp(0, 1), COLOURS[predicted[0]].movedim(-1, 0)], dim=2))
        logger.run_event(Event.EVAL_END)
        state.phase = "train"

        checkpoint = f"checkpoint-{epoch}.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
        logger.upload_file(f"{{run_name}}/checkpoints/ep{epoch:02d}.pt", checkpoint)
        if fail:
            raise RuntimeError("the loss is not a number; not really, but it might have been")

    logger.log_video(torch.stack(frames), "learning", frames_per_s=2)
    pitch = torch.tensor(losses).repeat_interleave(400)  # what the loss sounds like
    logger.log_audio(0.3 * torch.sin(torch.cumsum(2 * torch.pi * (200 + 800 * pitch) / 16_000, 0)), "loss", 16_000)
    sinks.end_phase(state, typed)
    logger.run_event(Event.FIT_END)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bucket", help="a folder, s3://bucket/prefix, gs://bucket/prefix ...")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--run-name", default="", help="default: a new one")
    parser.add_argument("--fail", action="store_true", help="raise an exception after the first epoch")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    memory = InMemoryLogger()
    with Logger(State(options.run_name), destinations(options.bucket, memory)) as logger:
        train(logger, options.epochs, fail=options.fail)
    losses = memory.series("train/loss")
    print(f"The loss of step {losses.steps[-1]}: {losses.values[-1]:.3f}")


if __name__ == "__main__":
    main()
