"""A model that trains in a second, and Composer's Trainer around it."""

from __future__ import annotations

from typing import Any

import torch
from composer import Trainer
from composer.models import ComposerClassifier
from torch.utils.data import DataLoader, TensorDataset


def trainer(*loggers: Any, **options: Any) -> Trainer:
    """A Trainer of two epochs of four batches."""
    torch.manual_seed(1)
    inputs = torch.randn(32, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    model = ComposerClassifier(torch.nn.Linear(8, 2), num_classes=2)
    defaults = {
        "model": model,
        "train_dataloader": DataLoader(data, batch_size=8),
        "max_duration": "2ep",
        "optimizers": torch.optim.SGD(model.parameters(), 1e-2),
        "run_name": "my-run",
        "seed": 17,
        "device": "cpu",
        "progress_bar": False,
        "loggers": list(loggers),
    }
    return Trainer(**{**defaults, **options})
