"""How a batch gets to where a captured step reads it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from slow import random_batch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distillmatch.engine import steps
from distillmatch.methods import Batch


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


def with_truth(seed: int, strong: bool) -> Batch:
    """Images whose channels come last, labels, scores, and the truth beside them."""
    batch = random_batch(seed)
    images = batch.images.contiguous(memory_format=torch.channels_last)
    truth = torch.randint(7, (6,), generator=torch.Generator().manual_seed(seed))
    return replace(
        batch,
        images=images,
        strong=batch.strong if strong else None,
        strong_images=images.flip(3) if strong else None,
        of_unlabeled={**batch.of_unlabeled, "truth": truth},
    )


def tensors(batch: Batch) -> list[Tensor]:
    views = [batch.images, batch.labels, batch.unlabeled]
    views += [one for one in (batch.strong, batch.strong_images) if one is not None]
    return [*views, *batch.of_images.values(), *batch.of_unlabeled.values()]


@pytest.mark.parametrize("strong", [True, False])
def test_labels_and_scores_are_copied_by_one_launch_a_type_and_images_one_by_one(
    strong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "JOINT_COPY", 100)
    target, given = steps._copied(with_truth(0, strong)), with_truth(1, strong)
    places = [one.data_ptr() for one in tensors(target)]
    with Launches() as launches:
        steps._copy_into(target, given)
    assert [one.data_ptr() for one in tensors(target)] == places
    for into, rows in zip(tensors(target), tensors(given), strict=True):
        assert torch.equal(into, rows) and into.stride() == rows.stride()
    # The labels and the truth; three models' logits of all images, and the gate's scores.
    assert sorted(launches.sizes) == [1] * (2 + 2 * strong) + [2, 7]
