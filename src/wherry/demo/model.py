"""What the demo trains: a small torch network on scikit-learn's digits, or without those a softmax regression in plain Python.

Both are deterministic: epoch n does the same with the same parameters, in whichever process, so that a run that was killed
and restored ends with the very bytes of one that was not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import random
from pathlib import Path


def make_model() -> _TorchModel | _PlainModel:
    """The torch one if torch and scikit-learn are installed, else the plain one."""
    has_torch = all(importlib.util.find_spec(name) is not None for name in ("torch", "sklearn", "numpy"))
    return _TorchModel() if has_torch else _PlainModel()


class _TorchModel:
    """A network with one hidden layer on 8 x 8 images of digits, by Adam."""

    # The other model has the same attributes and methods: the training loop uses either.
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
        """Train on all data once, in the order of `epoch`; the mean loss."""
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
        """The share of right answers on data that it was not trained on."""
        import torch

        with torch.no_grad():
            guessed = self._net(self._x[self._n_train :]).argmax(dim=1)
        return float((guessed == self._y[self._n_train :]).float().mean())

    def save(self, path: Path, epoch: int) -> None:
        """Write a checkpoint: parameters, the optimizer's state, and the epoch that has ended."""
        import torch

        torch.save({"epoch": epoch, "model": self._net.state_dict(), "optimizer": self._optimizer.state_dict()}, path)

    def load(self, path: Path) -> int:
        """Go on from a checkpoint; the epoch that it ended. Nothing in the file is executed."""
        import torch

        saved = torch.load(path, weights_only=True)
        self._net.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        return int(saved["epoch"])

    def digest(self) -> str:
        """The SHA-256 of the parameters' bytes."""
        total = hashlib.sha256()
        for parameter in self._net.parameters():
            total.update(parameter.detach().numpy().tobytes())
        return total.hexdigest()


class _PlainModel:
    """A softmax regression on generated points, by stochastic gradient descent. Needs no library."""

    description = "a softmax regression in plain Python (with torch and scikit-learn it would be a network on digits)"
    _CLASSES, _FEATURES, _SAMPLES, _TRAIN = 4, 16, 500, 400

    def __init__(self) -> None:
        dice = random.Random(0)
        centers = [[dice.gauss(0, 1) for _ in range(self._FEATURES)] for _ in range(self._CLASSES)]
        labels = [dice.randrange(self._CLASSES) for _ in range(self._SAMPLES)]
        self._data = [([value + dice.gauss(0, 1.2) for value in centers[label]] + [1.0], label) for label in labels]
        self._weights = [[0.0] * (self._FEATURES + 1) for _ in range(self._CLASSES)]

    def _scores(self, x: list[float]) -> list[float]:
        return [sum(w * v for w, v in zip(weights, x, strict=True)) for weights in self._weights]

    def train_epoch(self, epoch: int) -> float:
        total = 0.0
        for x, label in random.Random(epoch).sample(self._data[: self._TRAIN], self._TRAIN):
            scores = self._scores(x)
            powers = [math.exp(score - max(scores)) for score in scores]
            total -= math.log(powers[label] / sum(powers))
            for c, weights in enumerate(self._weights):
                slope = powers[c] / sum(powers) - (c == label)
                self._weights[c] = [w - 0.02 * slope * v for w, v in zip(weights, x, strict=True)]
        return total / self._TRAIN

    def accuracy(self) -> float:
        held_out = self._data[self._TRAIN :]
        right = sum(max(range(self._CLASSES), key=self._scores(x).__getitem__) == label for x, label in held_out)
        return right / len(held_out)

    def save(self, path: Path, epoch: int) -> None:
        path.write_text(json.dumps([epoch, self._weights]))

    def load(self, path: Path) -> int:
        epoch, self._weights = json.loads(path.read_bytes())
        return int(epoch)

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self._weights).encode()).hexdigest()
