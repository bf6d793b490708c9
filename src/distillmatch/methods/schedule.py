"""Learning rates over the epochs: the paper's steps, in proportion to the epochs, or a cosine."""

from dataclasses import dataclass
from math import cos, pi

from distillmatch.config import RunConfig

# Shares of a task's epochs: where the rate falls to a tenth (120, 160, 180 of 200), where the main
# training ends before fine-tuning (180), where its rate falls (10, 15 of 20), and the detector's.
DECAYS, MAIN_SHARE, FINE_TUNING_DECAYS, DETECTOR_SHARE = (0.6, 0.8, 0.9), 0.9, (0.5, 0.75), 0.5


@dataclass(frozen=True)
class Schedule:
    """Epochs, learning rate, and the epochs after which it falls to a tenth.

    With `cosine` it falls to `last_rate` along half a cosine instead. In the first `warm_up` epochs
    it rises from `first_rate` along a line.
    """

    epochs: int
    learning_rate: float
    decays: tuple[int, ...] = ()
    cosine: bool = False
    warm_up: int = 0
    first_rate: float = 0.0
    last_rate: float = 0.0

    def rate(self, epoch: int) -> float:
        """Return the learning rate in an epoch, counted from 0."""
        if epoch < self.warm_up:
            rise = self.learning_rate - self.first_rate
            return self.first_rate + rise * epoch / self.warm_up
        if self.cosine:
            share = (epoch - self.warm_up) / (self.epochs - self.warm_up)
            fall = self.learning_rate - self.last_rate
            return self.last_rate + fall * (1 + cos(pi * share)) / 2
        return self.learning_rate * 0.1 ** sum(epoch >= decay for decay in self.decays)


def main_schedule(config: RunConfig, rate: float, *, fine_tuned: bool = False) -> Schedule:
    """Return the schedule of a task, cut short where fine-tuning follows."""
    end = main_epochs(config) if fine_tuned else config.epochs
    return _schedule(config, end, rate, DECAYS, config.epochs)


def fine_tuning_schedule(config: RunConfig, rate: float) -> Schedule:
    """Return the schedule of the fine-tuning that follows, at a tenth of the initial rate."""
    epochs = config.epochs - main_epochs(config)
    return _schedule(config, epochs, rate / 10, FINE_TUNING_DECAYS, epochs)


def detector_schedule(config: RunConfig, rate: float, *, fine_tuned: bool = False) -> Schedule:
    """Return the detector's schedule: half of the classifier's epochs before fine-tuning."""
    whole = max(1, round(DETECTOR_SHARE * config.epochs))
    end = max(1, round(DETECTOR_SHARE * main_epochs(config))) if fine_tuned else whole
    return _schedule(config, end, rate, DECAYS, whole)


def main_epochs(config: RunConfig) -> int:
    """Return a task's epochs before fine-tuning, of which there is at least one."""
    return max(1, min(round(MAIN_SHARE * config.epochs), config.epochs - 1))


def _schedule(
    config: RunConfig, end: int, rate: float, shares: tuple[float, ...], epochs: int
) -> Schedule:
    """Return a schedule that ends after `end` epochs, with decays at shares of `epochs`."""
    decays = tuple(e for e in (round(share * epochs) for share in shares) if 0 < e < end)
    return Schedule(end, rate, decays, cosine=config.schedule == "cosine")
