"""Optimizers as a captured step can take them, and the average of weights over the steps."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from distillmatch.config import RunConfig
from distillmatch.methods import Training
from distillmatch.networks.acceleration import descend

BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(eq=False)
class Optimizer(ABC):
    """torch's update by the function that it is made of, with all state in place.

    An object of torch.optim imports torch's compiler, which takes seconds and is not used. The rate
    is a tensor, so that a captured step reads it. `state` is all that a resumed training needs: at
    first 0, from which a step makes what torch makes of none.
    """

    parameters: Sequence[nn.Parameter]
    rate: Tensor
    weight_decay: float = 0.0
    clip: float | None = None
    state: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.state = self._zeros()

    @abstractmethod
    def step(self) -> None:
        """Update the parameters that have gradients, clipped together to a norm."""

    def forget_gradients(self) -> None:
        """Drop the last step's gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(one) for one in self.parameters]

    def _given(self, *states: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return the parameters with gradients, the gradients, and their state."""
        rows = zip(self.parameters, *states, strict=True)
        used = [row for row in rows if row[0].grad is not None]
        weights, *kept = ([row[n] for row in used] for n in range(1 + len(states)))
        return [weights, [one.grad for one in weights if one.grad is not None], *kept]

    def _clip(self) -> None:
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)


@dataclass(eq=False)
class Descent(Optimizer):
    """SGD with momentum, by kernels where there are any; its state is the velocities."""

    momentum: float = 0.0

    @torch.no_grad()
    def step(self) -> None:
        """Take a step."""
        weights, gradients, velocities = self._given(self.state)
        how = self.rate, self.momentum, self.weight_decay, self.clip
        if descend(weights, gradients, velocities, *how):
            return
        self._clip()
        sgd(
            weights,
            gradients,
            [*velocities],
            fused=True,
            lr=self.rate,  # type: ignore[arg-type]  # a tensor is taken too
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


@dataclass(eq=False)
class AdamW(Optimizer):
    """AdamW with torch's defaults; its state is means, squares and numbers of steps."""

    def __post_init__(self) -> None:
        self.means, self.squares = self._zeros(), self._zeros()
        self.steps = [torch.zeros((), device=self.rate.device) for _ in self.parameters]
        self.state = [*self.means, *self.squares, *self.steps]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step."""
        self._clip()
        given = self._given(self.means, self.squares, self.steps)
        weights, gradients, means, squares, steps = given
        adamw(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=self.rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )


@dataclass(eq=False)
class LayerwiseDescent(Optimizer):
    """LARS: SGD with momentum, each matrix at a rate adapted to its length and its gradient's.

    g' = λ (g + β w) with λ = trust ‖w‖ / (‖g‖ + β ‖w‖), v = momentum v + g', w = w - rate v.

    Vectors, the biases and the parameters of normalization, have g' = g. The rate of the parameters
    in `head` is `head_rate` times that of the others. Its state is the velocities.
    """

    momentum: float = 0.0
    trust: float = 0.001
    head: Collection[nn.Parameter] = ()
    head_rate: float = 1.0

    @torch.no_grad()
    def step(self) -> None:
        """Take a step."""
        self._clip()
        weights, gradients, velocities = self._given(self.state)
        matrices = [number for number, weight in enumerate(weights) if weight.ndim > 1]
        self._adapt([weights[n] for n in matrices], [gradients[n] for n in matrices])
        torch._foreach_mul_(velocities, self.momentum)
        torch._foreach_add_(velocities, gradients)
        ways = torch._foreach_mul(velocities, self.rate)
        head = {id(parameter) for parameter in self.head}
        of_head = [way for way, weight in zip(ways, weights, strict=True) if id(weight) in head]
        if of_head:
            torch._foreach_mul_(of_head, self.head_rate)
        torch._foreach_sub_(weights, ways)

    def _adapt(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Add the weight decay to gradients, and scale each; one of length 0 is left as it is."""
        if not weights:
            return
        length = torch.stack(torch._foreach_norm(weights))
        of_gradient = torch.stack(torch._foreach_norm(gradients))
        adapted = self.trust * length / (of_gradient + self.weight_decay * length)
        factors = torch.where((length > 0) & (of_gradient > 0), adapted, 1)
        torch._foreach_add_(gradients, weights, alpha=self.weight_decay)
        torch._foreach_mul_(gradients, factors.unbind())


class WeightAverage:
    """The exponential average of a network's weights and statistics, one update a step.

    After t steps it is Σ_s d^(t-s) θ_s / Σ_s d^(t-s) over the weights θ_1 … θ_t after each step,
    with decay d. The initial weights do not count, so it serves short trainings too. All of it lies
    on the device and is changed in place, so that an update can be captured with the step.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = network
        self.decay = decay
        weights = network.state_dict().items()
        self.current = {name: value for name, value in weights if value.is_floating_point()}
        kept = torch.preserve_format
        self.averaged = {k: value.clone(memory_format=kept) for k, value in self.current.items()}
        first = next(iter(self.current.values()))
        self.total = torch.zeros((), device=first.device)

    @torch.no_grad()
    def update(self) -> None:
        """Count the weights as they are now."""
        self.total.mul_(self.decay).add_(1)
        averaged = list(self.averaged.values())
        ways = torch._foreach_sub(list(self.current.values()), averaged)
        torch._foreach_mul_(ways, self.total.reciprocal())
        torch._foreach_add_(averaged, ways)

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Give the network the average as its weights."""
        torch._foreach_copy_(list(self.current.values()), list(self.averaged.values()))

    def tensors(self) -> dict[str, Tensor]:
        """Return all that the average depends on, by name."""
        return {"total": self.total, **{f"of {n}": value for n, value in self.averaged.items()}}


def make_optimizer(training: Training, config: RunConfig, device: torch.device) -> Optimizer:
    """Return a fresh optimizer over the parameters that a training changes."""
    changed, lars = training.network, training.optimizer
    if training.parameters == "head":
        changed = changed.get_submodule("head")
    rate = torch.tensor(training.schedule.learning_rate, device=device)
    given = list(changed.parameters()), rate
    if lars is not None:
        return LayerwiseDescent(
            *given,
            lars.weight_decay,
            training.clip,
            momentum=config.momentum,
            trust=lars.trust,
            head=list(training.network.get_submodule("head").parameters()),
            head_rate=lars.head_rate,
        )
    if config.optimizer == "adamw":
        return AdamW(*given, config.weight_decay, training.clip)
    return Descent(*given, config.weight_decay, training.clip, config.momentum)
