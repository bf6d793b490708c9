"""A network in training that is written out, on a GPU, beside its layers in float32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from test_kernels_gpu import maps
from torch import Tensor, nn

from distillmatch import fast
from distillmatch.concurrency import shared_device
from distillmatch.networks import StatisticsGroups, separate_statistics
from distillmatch.networks.wide_resnet import WideResNet

pytestmark = pytest.mark.gpu


@contextmanager
def layer_by_layer(backbone: nn.Module) -> Iterator[None]:
    """Let someone watch a layer, so that all are called one by one."""
    hook = next(backbone.children()).register_forward_hook(lambda *given: None)
    try:
        yield
    finally:
        hook.remove()


def gradients_of(
    width: int,
    side: int,
    count: int,
    groups: StatisticsGroups | None,
    half: bool,
    around: Callable[..., Any],
) -> dict[str, Tensor]:
    """Return features, statistics and gradients of a network's parameters and of its images."""
    backbone = WideResNet(16, width, generator=torch.Generator().manual_seed(1)).cuda()
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(
        count, 3, side, side, device="cuda", generator=torch.Generator("cuda").manual_seed(2)
    )
    images = images.to(memory_format=torch.channels_last).requires_grad_()
    with (
        torch.autocast("cuda", torch.bfloat16, enabled=half),
        nullcontext() if groups is None else separate_statistics(backbone, *groups),
        around(backbone),
    ):
        features = backbone(images)
    generator = torch.Generator("cuda").manual_seed(3)
    given = torch.randn(features.shape, device="cuda", generator=generator)
    (features.float() * given).sum().backward()
    found = {name: one.grad for name, one in backbone.named_parameters()}
    found |= {"features": features.detach(), "images": images.grad}
    return {**found, **dict(backbone.named_buffers())}


@pytest.mark.parametrize(
    ("width", "side", "count", "groups"),
    [
        (2, 32, 64, None),
        (2, 32, 96, StatisticsGroups((64, 32), 1)),
        (2, 32, 160, StatisticsGroups((64, 60, 36), 3)),
        (1, 32, 32, None),
        (4, 32, 16, StatisticsGroups((9, 7), 2)),
        (2, 64, 16, None),
        (2, 32, 96, StatisticsGroups((16,) * 6, 5)),
    ],
)
def test_a_network_is_as_near_to_float32_as_layer_by_layer(
    width: int, side: int, count: int, groups: StatisticsGroups | None
) -> None:
    def errors(found: dict[str, Tensor]) -> list[float]:
        """Return those of features, images' gradient, statistics and parameters' gradients."""
        kinds: list[list[str]] = [["features"], ["images"], [], []]
        for name in exact:
            if name not in ("features", "images"):
                kinds[2 if "running" in name else 3].append(name)
        made = []
        for names in kinds:
            true = torch.cat([exact[name].float().flatten() for name in names])
            ours = torch.cat([found[name].float().flatten() for name in names])
            made.append(float((ours - true).norm() / true.norm()))
        return made

    sizes = width, side, count, groups
    exact = gradients_of(*sizes, False, lambda backbone: nullcontext())
    ours = gradients_of(*sizes, True, lambda backbone: nullcontext())
    theirs = gradients_of(*sizes, True, layer_by_layer)
    assert any(not torch.equal(ours[name], theirs[name]) for name in exact), "it was not used"
    for error, usual in zip(errors(ours), errors(theirs), strict=True):
        assert error < 1.25 * usual, (errors(ours), errors(theirs))


def test_a_network_is_the_same_to_the_bit_again_and_beside_other_runs() -> None:
    sizes = 2, 32, 160, StatisticsGroups((80, 48, 32), 3)
    found = [
        gradients_of(*sizes, True, lambda backbone: nullcontext()),
        gradients_of(*sizes, True, lambda backbone: nullcontext()),
    ]
    with shared_device():
        found.append(gradients_of(*sizes, True, lambda backbone: nullcontext()))
    for name, first in found[0].items():
        assert all(torch.equal(first, other[name]) for other in found[1:]), name


def test_who_goes_layer_by_layer() -> None:
    backbone = WideResNet(10, 2).cuda()
    images = torch.randn(4, 3, 32, 32, device="cuda")

    def taken(dtype: torch.dtype = torch.bfloat16) -> bool:
        with torch.autocast("cuda", dtype):
            return fast.backbone_features(backbone, images) is not None

    assert taken()
    assert not taken(torch.float16)
    assert fast.backbone_features(backbone, images) is None
    with separate_statistics(backbone, [2, 2]):
        assert taken()
    for sizes in ([4, 1], [4, 0], [1, 1, 1, 0, 1]):
        with separate_statistics(backbone, sizes):
            assert not taken()
    backbone.eval()
    assert not taken()


def test_a_captured_step_gives_the_gradients_of_one_that_is_not() -> None:
    backbone = WideResNet(10, 2, generator=torch.Generator().manual_seed(1)).cuda()
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = maps(128, 3, 32, 1).float()

    def step() -> list[Tensor | None]:
        for parameter in backbone.parameters():
            parameter.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            features = backbone(images)
        features.square().sum().backward()
        return [parameter.grad for parameter in backbone.parameters()]

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        eager = [one.clone() for one in step() if one is not None]
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(eager, captured, strict=True):
        assert other is not None and torch.equal(one, other)
