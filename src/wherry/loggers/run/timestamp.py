"""How far a training run is."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Timestamp:
    """What a run has finished so far: counts since its start, and since the start of the epoch that is under way.

    It never changes: each step gives a new one, so that one that was kept stays what it was.
    """

    epoch: int = 0
    batch: int = 0
    sample: int = 0
    token: int = 0
    batch_in_epoch: int = 0
    sample_in_epoch: int = 0
    token_in_epoch: int = 0

    def to_next_batch(self, samples: int = 0, tokens: int = 0) -> Timestamp:
        """One batch, of so many samples and tokens, later."""
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
        """The epoch has ended: it is counted, and the counts in the epoch start again at 0."""
        return replace(self, epoch=self.epoch + 1, batch_in_epoch=0, sample_in_epoch=0, token_in_epoch=0)
