"""The mean loss of each epoch of a training, read from the device without keeping it waiting."""

import numpy as np
import torch
from torch import Tensor

from distillmatch.errors import TrainingError


class LossMeans:
    """Appends the mean loss of each epoch, and of its terms, to `means`, one epoch late.

    If the losses of an epoch were read at its end, the device would have nothing to do until the
    host has queued the next one's steps. So they are copied when they are there, and looked at
    after those steps are queued. `where` names the training in an error.
    """

    def __init__(self, means: dict[str, list[float]], where: str) -> None:
        self.means = means
        self.where = where
        self._names: tuple[str, ...] = ()
        self._unread: tuple[Tensor, torch.cuda.Event | None] | None = None

    def add(self, losses: Tensor, names: tuple[str, ...]) -> None:
        """Take the losses of an epoch's steps, a row each; look at those of the epoch before."""
        self.settle()
        self._names = names
        copied = losses.float()
        if not losses.is_cuda:
            self._unread = copied, None
            return
        kept = torch.empty(copied.shape, pin_memory=True)
        kept.copy_(copied, non_blocking=True)
        self._unread = kept, torch.cuda.current_stream().record_event()

    def settle(self) -> None:
        """Look at the losses that were taken last, or say where they stopped being numbers."""
        if self._unread is None:
            return
        (losses, copied), self._unread = self._unread, None
        if copied is not None:
            copied.synchronize()
        values = losses.numpy()
        wrong = np.flatnonzero(~np.isfinite(values[:, 0]))
        if len(wrong):
            epoch = len(self.means.get("loss", ())) + 1
            raise TrainingError(
                f"the loss became {values[wrong[0], 0]} in {self.where}, epoch {epoch}, "
                f"step {wrong[0] + 1}; a lower learning_rate may help"
            )
        for name, column in zip(self._names, values.T, strict=True):
            self.means.setdefault(name, []).append(float(column.mean()))
