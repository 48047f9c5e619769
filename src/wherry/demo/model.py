"""What the demo trains: a small torch network on scikit-learn's digits, or without those a softmax regression in plain Python.

Both are deterministic: epoch n does the same with the same parameters, in whichever process, so that a run that was killed
and restored ends with the very bytes of one that was not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import random
import struct
from pathlib import Path
from typing import Protocol


class Model(Protocol):
    """What the demo's training loop needs of a model."""

    description: str

    def train_epoch(self, epoch: int) -> float:
        """Train on all data once, in the order of `epoch`; the mean loss."""

    def accuracy(self) -> float:
        """The share of right answers on data that it was not trained on."""

    def save(self, path: Path, epoch: int) -> None:
        """Write a checkpoint: parameters, the optimizer's state, and the epoch that has ended."""

    def load(self, path: Path) -> int:
        """Go on from a checkpoint; the epoch that it ended. Nothing in the file is executed."""

    def digest(self) -> str:
        """The SHA-256 of the parameters' bytes."""


def make_model() -> Model:
    """The torch one if torch and scikit-learn are installed, else the plain one."""
    has_torch = all(importlib.util.find_spec(name) is not None for name in ("torch", "sklearn", "numpy"))
    return _TorchModel() if has_torch else _PlainModel()


class _TorchModel:
    """A network with one hidden layer on 8 x 8 images of digits, by Adam."""

    description = "a torch network on scikit-learn's digits"

    def __init__(self) -> None:
        import torch
        from sklearn.datasets import load_digits

        torch.set_num_threads(1)  # sums in one order only
        torch.manual_seed(0)
        images, labels = load_digits(return_X_y=True)
        self._x = torch.tensor(images / 16.0, dtype=torch.float32)
        self._y = torch.tensor(labels)
        self._n_train = 1500
        self._net = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=1e-3)

    def train_epoch(self, epoch: int) -> float:
        import torch

        order = torch.randperm(self._n_train, generator=torch.Generator().manual_seed(epoch))
        batches = order.split(50)  # type: ignore[no-untyped-call]
        total = 0.0
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(self._net(self._x[batch]), self._y[batch])
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += float(loss.detach())
        return total / len(batches)

    def accuracy(self) -> float:
        import torch

        with torch.no_grad():
            guessed = self._net(self._x[self._n_train :]).argmax(dim=1)
        return float((guessed == self._y[self._n_train :]).float().mean())

    def save(self, path: Path, epoch: int) -> None:
        import torch

        torch.save({"epoch": epoch, "model": self._net.state_dict(), "optimizer": self._optimizer.state_dict()}, path)

    def load(self, path: Path) -> int:
        import torch

        saved = torch.load(path, weights_only=True)
        self._net.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        return int(saved["epoch"])

    def digest(self) -> str:
        total = hashlib.sha256()
        for parameter in self._net.parameters():
            total.update(parameter.detach().numpy().tobytes())
        return total.hexdigest()


class _PlainModel:
    """A softmax regression on generated points, by gradient descent with momentum. Needs no library."""

    description = "a softmax regression in plain Python (with torch and scikit-learn it would be a network on digits)"
    _CLASSES, _FEATURES, _SAMPLES, _TRAIN = 4, 16, 500, 400

    def __init__(self) -> None:
        dice = random.Random(0)
        centers = [[dice.gauss(0, 1) for _ in range(self._FEATURES)] for _ in range(self._CLASSES)]
        self._data = [
            ([value + dice.gauss(0, 1.2) for value in centers[label]] + [1.0], label)
            for label in (dice.randrange(self._CLASSES) for _ in range(self._SAMPLES))
        ]
        n = self._CLASSES * (self._FEATURES + 1)
        self._weights = [0.0] * n
        self._momentum = [0.0] * n

    def _scores(self, x: list[float]) -> list[float]:
        width = self._FEATURES + 1
        return [
            sum(w * v for w, v in zip(self._weights[c * width : (c + 1) * width], x, strict=True)) for c in range(self._CLASSES)
        ]

    def train_epoch(self, epoch: int) -> float:
        order = list(range(self._TRAIN))
        random.Random(epoch).shuffle(order)
        width, n_batches, total = self._FEATURES + 1, self._TRAIN // 20, 0.0
        for batch in range(n_batches):
            gradient = [0.0] * len(self._weights)
            for i in order[batch * 20 : (batch + 1) * 20]:
                x, label = self._data[i]
                scores = self._scores(x)
                top = max(scores)
                powers = [math.exp(score - top) for score in scores]
                total -= math.log(powers[label] / sum(powers))
                for c, power in enumerate(powers):
                    slope = power / sum(powers) - (c == label)
                    for f, value in enumerate(x):
                        gradient[c * width + f] += slope * value / 20
            self._momentum = [0.9 * m + g for m, g in zip(self._momentum, gradient, strict=True)]
            self._weights = [w - 0.05 * m for w, m in zip(self._weights, self._momentum, strict=True)]
        return total / self._TRAIN

    def accuracy(self) -> float:
        held_out = self._data[self._TRAIN :]
        right = sum(max(range(self._CLASSES), key=self._scores(x).__getitem__) == label for x, label in held_out)
        return right / len(held_out)

    def _bytes(self) -> bytes:
        return struct.pack(f"<{2 * len(self._weights)}d", *self._weights, *self._momentum)

    def save(self, path: Path, epoch: int) -> None:
        path.write_bytes(struct.pack("<q", epoch) + self._bytes())

    def load(self, path: Path) -> int:
        n = len(self._weights)
        epoch, *numbers = struct.unpack(f"<q{2 * n}d", path.read_bytes())
        self._weights, self._momentum = numbers[:n], numbers[n:]
        return int(epoch)

    def digest(self) -> str:
        return hashlib.sha256(self._bytes()).hexdigest()
