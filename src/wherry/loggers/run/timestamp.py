"""Timestamp: the progress of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Timestamp:
    """What a run has finished so far: counts since its start, and since the start of the current epoch::

        timestamp = Timestamp().to_next_batch(samples=32)  # batch=1, sample=32, batch_in_epoch=1, sample_in_epoch=32
        timestamp = timestamp.to_next_epoch()  # epoch=1, batch_in_epoch=0, sample_in_epoch=0; batch and sample stay

    It is immutable: each step returns a new one.
    """

    epoch: int = 0
    batch: int = 0
    sample: int = 0
    token: int = 0
    batch_in_epoch: int = 0
    sample_in_epoch: int = 0
    token_in_epoch: int = 0

    def to_next_batch(self, samples: int = 0, tokens: int = 0) -> Timestamp:
        """The timestamp after one more batch with so many samples and tokens."""
        return replace(
            self,
            batch=self.batch + 1,
            sample=self.sample + samples,
            token=self.token + tokens,
            batch_in_epoch=self.batch_in_epoch + 1,
            sample_in_epoch=self.sample_in_epoch + samples,
            token_in_epoch=self.token_in_epoch + tokens,
        )

    def to_next_epoch(self) -> Timestamp:
        """The timestamp after the end of the epoch: the counts in the epoch begin at 0 again."""
        return replace(self, epoch=self.epoch + 1, batch_in_epoch=0, sample_in_epoch=0, token_in_epoch=0)
