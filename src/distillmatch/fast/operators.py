"""Operators of torch: plain torch on every device, and on CUDA a kernel for what it takes.

They are registered by `torch.library.Library`, which adds 6 µs to a call of the plain function on
a slow CPU; `torch.library.custom_op` adds 65 µs, and imports torch's compiler, which takes seconds.
Evaluation calls some 60 of them a batch outside of CUDA graphs.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from distillmatch.fast.compiler import device_properties, disable, disabled, is_new_enough

LIBRARY: Any = torch.library.Library("distillmatch", "FRAGMENT")  # type: ignore[no-untyped-call]
OPERATORS: list["Operator"] = []
TRIED = {(9, 0)}
"""Compute capabilities of the GPUs on which all kernels were tested."""
TOLERANCE = 0.01
"""Of the difference from plain torch, relative to its result; bfloat16 has 8 bits."""

_checked: set[int] = set()
_lock = threading.Lock()

Call = tuple[Any, ...]
"""The arguments of a call."""


class Draw:
    """Draws tensors for the calls that try an operator, on one device."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator().manual_seed(1)

    def numbers(self, *shape: int) -> Tensor:
        """Return normal numbers in float32."""
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def maps(self, *shape: int) -> Tensor:
        """Return channels-last maps, or weights, in bfloat16."""
        drawn = self.numbers(*shape).to(torch.bfloat16)
        return drawn.contiguous(memory_format=torch.channels_last)

    def signs(self, *shape: int) -> Tensor:
        """Return bytes."""
        drawn = torch.randint(256, shape, dtype=torch.uint8, generator=self.generator)
        return drawn.to(self.device)


class Operator:
    """An operator; `kernel` returns NotImplemented for a call that it cannot take.

    `examples` are calls that its kernel takes. torch finds the shapes of results by `plain`.
    """

    def __init__(
        self,
        schema: str,
        plain: Callable[..., Any],
        kernel: Callable[..., Any],
        examples: Callable[[Draw], Iterable[Call]],
    ) -> None:
        self.name = schema.partition("(")[0]
        self.plain, self.kernel, self.examples = plain, kernel, examples
        LIBRARY.define(schema)
        LIBRARY.impl(self.name, plain, "CPU")
        LIBRARY.impl(self.name, self._on_cuda, "CUDA")
        torch.library.register_fake(f"distillmatch::{self.name}", plain, lib=LIBRARY)
        self.overload = getattr(torch.ops.distillmatch, self.name).default
        OPERATORS.append(self)

    def __call__(self, *arguments: Any) -> Any:
        """Call it on whatever device the tensors are."""
        return self.overload(*arguments)

    def _on_cuda(self, *arguments: Any) -> Any:
        made = self.kernel(*arguments)
        return self.plain(*arguments) if made is NotImplemented else made


def is_usable(device: int) -> bool:
    """Return whether kernels are used on a device; one of a kind not tried is checked first."""
    if device in disabled or not is_new_enough(device):
        return False
    properties = device_properties(device)
    if (properties.major, properties.minor) in TRIED or device in _checked:
        return True
    if torch.cuda.is_current_stream_capturing():
        return False  # a check reads from the device
    with _lock:
        if device not in _checked:
            try:
                wrong = ", ".join(wrong_operators(OPERATORS, torch.device("cuda", device)))
            except RuntimeError as error:
                disable(device, f"trying them on {properties.name} failed: {error}")
            else:
                if wrong:
                    disable(device, f"{wrong} came to other numbers on {properties.name}")
            _checked.add(device)
    return device not in disabled


def wrong_operators(operators: Sequence[Operator], device: torch.device) -> list[str]:
    """Return the operators whose kernel computes something else than plain torch on a device."""
    wrong = []
    for operator in operators:
        for call in operator.examples(Draw(device)):
            ours, theirs = _copied(call), _copied(call)
            made = operator.kernel(*ours)
            if made is NotImplemented:
                continue
            wanted = operator.plain(*theirs)
            pairs = zip(_tensors([made, ours]), _tensors([wanted, theirs]), strict=True)
            if not all(_agree(one, other) for one, other in pairs):
                wrong.append(operator.name)
                break
    return wrong


def _agree(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not other.is_floating_point():
        return float((one != other).double().mean()) <= TOLERANCE if one.numel() else True
    difference = (one.double() - other.double()).norm()
    return bool(difference <= TOLERANCE * other.double().norm())  # false if it is not a number


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return type(value)(map(_copied, value)) if isinstance(value, list | tuple) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
