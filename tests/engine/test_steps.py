"""How a batch gets to where a captured step reads it, and how an epoch is cut into batches."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distillmatch.engine import steps
from distillmatch.engine.data import Epoch
from distillmatch.methods import Batch


class Outputs(NamedTuple):
    """Logits, a score of each image, and what no network was asked."""

    past: Tensor
    score: Tensor
    nothing: Tensor | None = None


def outputs(count: int, generator: torch.Generator) -> Outputs:
    logits = torch.randn(count, 7, generator=generator)
    return Outputs(logits, torch.rand(count, generator=generator))


def drawn(seed: int, strong: bool) -> Batch:
    """Five labeled and six unlabeled images whose channels come last, and all that is of them."""
    generator = torch.Generator().manual_seed(seed)

    def images(count: int) -> Tensor:
        drawn = torch.randn(count, 3, 8, 8, generator=generator)
        return drawn.contiguous(memory_format=torch.channels_last)

    return Batch(
        images=images(5),
        labels=torch.randint(7, (5,), generator=generator),
        unlabeled=images(6),
        strong=images(6) if strong else None,
        strong_images=images(5) if strong else None,
        labeled_outputs=outputs(5, generator),
        unlabeled_outputs=outputs(6, generator),
        truth=torch.randint(7, (6,), generator=generator),
    )


def tensors(batch: Batch) -> list[Tensor]:
    views = [batch.images, batch.labels, batch.unlabeled, batch.strong, batch.strong_images]
    found = [*views, *batch.labeled_outputs, *batch.unlabeled_outputs, batch.truth]
    return [one for one in found if one is not None]


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each copy, which on CUDA is a launch: of one tensor, or of several of one type."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function is torch.ops.aten._foreach_copy_.default:
            assert len({one.dtype for one in arguments[0]}) == 1
            self.sizes.append(len(arguments[0]))
        elif function is torch.ops.aten.copy_.default:
            self.sizes.append(1)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("strong", [True, False])
def test_labels_and_outputs_are_copied_by_one_launch_a_type_and_images_one_by_one(
    strong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "JOINT_COPY", 100)
    target, given = steps._copied(drawn(0, strong)), drawn(1, strong)
    places = [one.data_ptr() for one in tensors(target)]
    with Launches() as launches:
        steps._copy_into(target, given)
    assert [one.data_ptr() for one in tensors(target)] == places
    for into, rows in zip(tensors(target), tensors(given), strict=True):
        assert torch.equal(into, rows) and into.stride() == rows.stride()
    # The labels and the truth; logits and scores of labeled and of unlabeled images.
    assert sorted(launches.sizes) == [1] * (2 + 2 * strong) + [2, 4]


def test_an_epoch_is_cut_into_the_batches_of_its_steps_with_all_that_is_of_them() -> None:
    labeled, unlabeled = torch.arange(5.0), torch.arange(10.0, 16.0)
    epoch = Epoch(
        sizes=(2, 3),
        unlabeled_sizes=(4, 2),
        images=labeled,
        labels=labeled.long(),
        unlabeled=unlabeled,
        strong=-unlabeled,
        strong_images=-labeled,
        labeled_outputs=Outputs(labeled + 100, labeled),
        unlabeled_outputs=Outputs(unlabeled + 100, unlabeled),
        truth=unlabeled.long(),
    )
    first, second = steps.batches(epoch)
    for batch, rows, others in ((first, [0, 1], [10, 11, 12, 13]), (second, [2, 3, 4], [14, 15])):
        assert batch.images.tolist() == batch.labels.tolist() == rows
        assert batch.unlabeled.tolist() == others
        assert batch.truth is not None and batch.truth.tolist() == others
        assert batch.strong is not None and batch.strong.tolist() == [-one for one in others]
        assert batch.strong_images is not None
        assert batch.strong_images.tolist() == [-one for one in rows]
        assert batch.past.tolist() == [one + 100 for one in [*rows, *others]]
        assert batch.labeled_outputs.score.tolist() == rows
        assert batch.unlabeled_outputs.nothing is None
