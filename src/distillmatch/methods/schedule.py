"""The paper's training schedule, in proportion to the number of epochs."""

from dataclasses import dataclass

from distillmatch.config import RunConfig

DECAYS = (0.6, 0.8, 0.9)
"""Shares of a task's epochs after which the rate falls to a tenth: 120, 160, 180 of 200."""
MAIN_SHARE = 0.9
"""Share of a task's epochs before fine-tuning, where there is any: 180 of 200."""
FINE_TUNING_DECAYS = (0.5, 0.75)
"""Shares of the fine-tuning epochs after which its rate falls to a tenth: 10, 15 of 20."""


@dataclass(frozen=True)
class Schedule:
    """Epochs, first learning rate and the epochs after which it falls to a tenth."""

    epochs: int
    learning_rate: float
    decays: tuple[int, ...] = ()

    def rate(self, epoch: int) -> float:
        """Return the learning rate in an epoch, counted from 0."""
        return self.learning_rate * 0.1 ** sum(epoch >= decay for decay in self.decays)


def main_schedule(config: RunConfig, rate: float, *, fine_tuned: bool = False) -> Schedule:
    """Return the schedule of a task, cut short where fine-tuning follows."""
    end = main_epochs(config) if fine_tuned else config.epochs
    decays = tuple(e for e in (round(s * config.epochs) for s in DECAYS) if 0 < e < end)
    return Schedule(end, config.learning_rate or rate, decays)


def fine_tuning_schedule(config: RunConfig, rate: float) -> Schedule:
    """Return the schedule of the fine-tuning that follows: at a tenth of the first rate."""
    epochs = config.epochs - main_epochs(config)
    decays = tuple(e for e in (round(s * epochs) for s in FINE_TUNING_DECAYS) if 0 < e < epochs)
    return Schedule(epochs, (config.learning_rate or rate) / 10, decays)


def detector_schedule(config: RunConfig, rate: float) -> Schedule:
    """Return the detector's schedule: a share of the epochs, decays at the same shares."""
    epochs = max(1, round(config.detector_share * config.epochs))
    decays = tuple(e for e in (round(s * epochs) for s in DECAYS) if 0 < e < epochs)
    return Schedule(epochs, config.learning_rate or rate, decays)


def main_epochs(config: RunConfig) -> int:
    """Return a task's epochs before fine-tuning, of which there is at least one."""
    return max(1, min(round(MAIN_SHARE * config.epochs), config.epochs - 1))
