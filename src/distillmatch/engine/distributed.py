"""One run on several GPUs: every process takes the same steps, and computes a part of each.

All processes draw the same epochs and make all their views: draws are functions of the seed, so
nothing need be sent. What costs time is shared. A network that is trained is given a whole batch,
runs its own images through, every so-many-th one, and gathers the outputs of all; so a method's
loss sees whole batches and is the loss of a single process, whatever it divides by. Statistics of
normalization are those of the whole batch. What frozen models say of images is shared the same way.

Gradients are averaged once a step is through with its backward pass, by one reduction over all of
them. `torch.nn.parallel.DistributedDataParallel` does the same piece by piece during the pass; it
is not used, because it reads a gradient when autograd hands it over, and ours of convolutions are
then still being computed on a stream beside (`distillmatch.networks.convolution`). It also wants
to be called in place of the network, which methods hold and call as often as they like.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, distributed, nn

from distillmatch.errors import ConfigError, TrainingError
from distillmatch.methods import Batch, ImageSet, Passes, Scores, Training
from distillmatch.methods.method import ScoreFunction
from distillmatch.networks import BatchNorm, shared_statistics
from distillmatch.networks.across import add_up, contact, gather

Value = TypeVar("Value")

PATIENCE = timedelta(days=1)
"""How long a process waits for another, which may be decoding images; the launcher ends the others
of one that died."""
CHANNELS_LAST = 4
"""Dimensions of a batch of images, whose channels come last in memory."""

_meetings = itertools.count()


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes of a run, as one of them sees them; `local` is its number on its machine."""

    number: int
    count: int
    local: int
    local_count: int
    store: Any

    @classmethod
    def join(cls, backend: str | None = None) -> Self:
        """Meet the other processes, as torchrun's environment says: gloo on CPUs, NCCL on GPUs."""
        if backend is None:
            backend = "cpu:gloo,cuda:nccl" if distributed.is_nccl_available() else "gloo"
        store, number, count = next(distributed.rendezvous("env://"))  # type: ignore[attr-defined]
        # Who meets a second time must not find what the first meeting left in the store.
        store = distributed.PrefixStore(f"distillmatch {next(_meetings)}", store)  # type: ignore[attr-defined]
        distributed.init_process_group(
            backend, store=store, rank=number, world_size=count, timeout=PATIENCE
        )
        local = int(os.environ.get("LOCAL_RANK", "0"))
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return cls(number, count, local, beside, store)

    def leave(self) -> None:
        """Wait for the others to be done too, and part."""
        self.wait()
        distributed.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks to the user."""
        return self.number == 0

    def device(self) -> torch.device:
        """Return the GPU of this process, one for each of its machine."""
        found = torch.cuda.device_count()
        if self.local_count > found:
            raise ConfigError(
                f"{self.local_count} processes were started on a machine with {found} GPUs: start "
                "one for each, or give --device cpu"
            )
        torch.cuda.set_device(self.local)
        return torch.device("cuda", self.local)

    def check_batch(self, size: int, option: str) -> None:
        """Refuse a batch that cannot be cut into equal parts."""
        if size % self.count:
            raise ConfigError(
                f"{option} must be a multiple of {self.count}, the number of processes, not {size}"
            )

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.largest(0)

    def largest(self, value: int) -> int:
        """Return the largest of the values that the processes have."""
        values = torch.tensor([value])
        with contact(values):
            distributed.all_reduce(values, distributed.ReduceOp.MAX)
        return int(values)

    def from_first(self, value: Value) -> Value:
        """Return what the first process has."""
        values: list[Any] = [value if self.first else None]
        with contact(torch.empty(0)):
            distributed.broadcast_object_list(values, device=torch.device("cpu"))
        found: Value = values[0]
        return found

    @contextmanager
    def one_before_others(self) -> Iterator[None]:
        """Let one process of each machine do the block before the others, who find it done."""
        if self.local:
            self.wait()
        yield
        if not self.local:
            self.wait()

    def claim_failure(self) -> bool:
        """Tell whether this is the first process to fail, and thus the one to say why."""
        failed: bytes = self.store.compare_set("failed", "", str(self.number))
        return failed.decode() == str(self.number)

    def own(self, rows: Tensor) -> Tensor:
        """Return the rows of a batch that are this process's to compute.

        Every so-many-th: so each part of a batch, labelled or not, is cut evenly.
        """
        part = rows[self.number :: self.count]
        if part.ndim == CHANNELS_LAST:
            return part.contiguous(memory_format=torch.channels_last)
        return part.contiguous()

    def whole(self, part: Tensor) -> Tensor:
        """Return the rows of all processes in their order, differentiably."""
        return gather(part).transpose(0, 1).flatten(0, 1)

    def average(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace the gradients of parameters by their means over all processes."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        flat = add_up(torch.cat([gradient.reshape(-1) for gradient in gradients])) / self.count
        pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
        means = [piece.view(one.shape) for piece, one in zip(pieces, gradients, strict=True)]
        torch._foreach_copy_(gradients, means)

    def shared_score(self, score: ScoreFunction) -> ScoreFunction:
        """Return a score function of which each process computes its part of the images."""

        def shared(images: Tensor) -> Scores:
            count = len(images)
            if count == 0:
                return score(images)
            missing = -count % self.count
            if missing:  # whatever they are asked beyond the last image is cut off again
                images = torch.cat([images, images[-1:].expand(missing, *images.shape[1:])])
            own = score(self.own(images))
            return {name: self._whole_of(rows)[:count] for name, rows in own.items()}

        return shared

    def _whole_of(self, part: Tensor) -> Tensor:
        """Return the rows of all processes, of any type, to the bit."""
        rows = part.detach().contiguous()
        bits = rows.view(len(rows), -1).view(torch.uint8)
        return self.whole(bits).view(rows.dtype).view(-1, *rows.shape[1:])

    def shared_training(self, training: Training) -> Training:
        """Return a training whose network and frozen models are each asked about a part."""
        for layer in training.network.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                raise ConfigError(
                    f"the network has a {type(layer).__name__}, whose statistics each process "
                    "would take from its part of a batch alone: use distillmatch.networks.BatchNorm"
                )

        def shared(score: ScoreFunction | None) -> ScoreFunction | None:
            return None if score is None else self.shared_score(score)

        def around(passed: Callable[[Passes], None] | None) -> Callable[[Passes], None] | None:
            return None if passed is None else lambda data: passed(SharedPasses(data, self))

        def loss(batch: Batch) -> Tensor:
            with shared_forward(training, self):
                return training.loss(batch)

        return replace(
            training,
            loss=loss,
            score_images=shared(training.score_images),
            score_unlabeled=shared(training.score_unlabeled),
            before=around(training.before),
            after=around(training.after),
        )


@dataclass(frozen=True)
class SharedPasses:
    """Passes through a task's data of which each process takes its part."""

    data: Passes
    ranks: Ranks

    def score(self, score: ScoreFunction, over: ImageSet, views: int = 1) -> Scores:
        """Score weak views of every image of a set."""
        return self.data.score(self.ranks.shared_score(score), over, views)

    def note(self, notes: Scores) -> None:
        """Let what is said of every unlabelled image come with its views from now on."""
        self.data.note(notes)

    def count(self, over: ImageSet) -> int:
        """Return how many images a set holds."""
        return self.data.count(over)

    def labels(self, over: ImageSet) -> Tensor:
        """Return the classes of a labelled set's images, in the order in which they are scored."""
        return self.data.labels(over)

    def label_counts(self, over: ImageSet) -> Tensor:
        """Return how many images of each seen class a labelled set holds."""
        return self.data.label_counts(over)


@contextmanager
def shared_forward(training: Training, ranks: Ranks) -> Iterator[None]:
    """Within its block, a network that is given a batch computes its part and returns the whole.

    Hooks do it, so the network stays what it is to the method that holds it.
    """
    network = training.network
    layers = [layer for layer in network.modules() if isinstance(layer, BatchNorm)]

    def scale_parts(change: Callable[[int], int]) -> None:
        for layer in layers:
            if layer.parts is not None:
                sizes = tuple(map(change, layer.parts.sizes))
                layer.parts = layer.parts._replace(sizes=sizes)

    def part_of(images: int) -> int:
        part, rest = divmod(images, ranks.count)
        if rest:
            raise TrainingError(
                f"training '{training.name}' gives its network {images} images at once, which "
                f"cannot be cut into {ranks.count} equal parts, one for each process"
            )
        return part

    def cut(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        part_of(len(given[0]))
        scale_parts(part_of)
        return (ranks.own(given[0]), *given[1:])

    def join(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        scale_parts(lambda part: part * ranks.count)
        return ranks.whole(output)

    with shared_statistics(network):
        hooks = [network.register_forward_pre_hook(cut), network.register_forward_hook(join)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
