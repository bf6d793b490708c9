"""The processes of one run, started by torchrun: they stop together, and one speaks for all."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from distillmatch.config import RunConfig
from distillmatch.engine.distributed import Ranks
from distillmatch.errors import ConfigError, RunFolderError, SourceError
from distillmatch.methods import Method
from distillmatch.run.folder import Found
from distillmatch.run.interruption import Interrupted, StopRequest
from distillmatch.run.result import recorded_config


@contextmanager
def joined_ranks(backend: str | None = None) -> Iterator[Ranks]:
    """Within its block, this process is one of those that torchrun has started for one run.

    Whatever ends the run ends all of them. The first to fail says why, the others end in silence.
    """
    ranks = Ranks.join(backend)
    try:
        yield ranks
    except Exception:
        if not ranks.claim_failure():
            raise SystemExit(2) from None
        raise
    except SystemExit:  # all of them stop; who is done may not end the others while they write
        ranks.leave()
        raise
    except KeyboardInterrupt as stop:
        if not ranks.first and not isinstance(stop, Interrupted):
            raise SystemExit(128 + signal.SIGINT) from None
        raise
    ranks.leave()


class SharedStop(StopRequest):
    """A request to stop that reaches all processes of a run, whichever of them a signal reaches.

    They agree on it between epochs. A second signal changes nothing: a launcher hands on those that
    its processes have got from the terminal already. It kills who has not stopped half a minute
    later.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        self._heard = 0

    def settle(self) -> None:
        """Agree with the other processes on whether to stop."""
        number = self.ranks.largest(self._heard)
        if number and not self.asked:
            self.signal_number = number
            self.ask(signal.Signals(number).name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After a stop or a failure, what is left to write is written, though the launcher hurries.
        if error is None:
            super().__exit__(kind, error, trace)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._heard = self._heard or number


def check_ranks(ranks: Ranks, config: RunConfig, method: type[Method], at_once: int | None) -> None:
    """Refuse what several processes cannot do together, or were not told alike."""
    ranks.check_batch(config.batch, "batch")
    ranks.check_batch(config.unlabeled_batch, "unlabeled_batch")
    if ranks.count > 1 and config.last_batches == "short":
        raise ConfigError(
            "last_batches must be 'filled' under torchrun, not 'short': its processes share each "
            "step evenly"
        )
    accepted = config.accepted_statistics
    apart = config.labeled_statistics == "apart" and accepted != "unlabeled"
    if ranks.count > 1 and config.method == "dm" and apart:
        raise ConfigError(
            f"accepted_statistics must be 'unlabeled' under torchrun, not '{accepted}': the images "
            "of that forward cannot be shared evenly"
        )
    if at_once not in (None, 1) and method.independent_tasks:
        raise ConfigError(
            f"at_once must be 1 under torchrun, not {at_once}: its processes learn each task "
            "together"
        )
    here = recorded_config(config)
    there = ranks.from_first(here)
    if there != here:
        differing = ", ".join(key for key in here if here[key] != there.get(key))
        raise ConfigError(f"processes 0 and {ranks.number} were given different {differing}")


def found_by_first(ranks: Ranks, found: Found, identity: str) -> Found:
    """Return what the first process has found in the folder; refuse to go on with other data."""
    found, expected = ranks.from_first((found, identity))
    if expected != identity:
        raise SourceError(
            f"process {ranks.number} has other data than process 0: their fingerprints are "
            f"{identity} and {expected}"
        )
    if found.stages is not None:
        raise RunFolderError(
            "the folder holds stages that were learned side by side: continue them without torchrun"
        )
    return found
