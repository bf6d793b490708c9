"""A step made of all losses can be captured as a graph: nothing in it asks the device anything."""

import pytest
import torch
from torch import Tensor

from distillmatch.losses import (
    accepted,
    class_weights,
    confidence_calibration,
    consistency_loss,
    distillmatch_loss,
    ensemble_target_from_logits,
    hard_distillation,
    max_similarity,
    new_task_distillation,
    past_distillation,
    per_task_distillation,
    perturb,
    pseudo_labels,
    soft_global_distillation,
    softmax_confidence,
    threshold_at_tpr,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)
from distillmatch.networks import Detector, Network, build_network, frozen_statistics

pytestmark = pytest.mark.gpu

PAST_TASK_SIZES = (2, 3, 1)
PAST, SEEN, SLOTS = 6, 8, 10
BATCH = 16


def all_losses(
    network: Network, teacher: Network, detector: Detector, images: Tensor, labels: Tensor
) -> Tensor:
    """Return every loss and the sum of its gradients, the distance all parameters would move."""
    weak = network(images)[:, :SEEN].float()
    with frozen_statistics(network):
        strong = network(images.flip(3))[:, :SEEN].float()
    with torch.no_grad():
        past_logits = teacher(images).float()
    moved = perturb(images, images.roll(1, dims=0), 0.01)
    similarities, divisor = detector.parts(moved)
    scores = max_similarity(similarities, SEEN)
    gate = accepted(scores, threshold_at_tpr(scores, 0.5))
    guesses = pseudo_labels(past_logits, PAST)
    counts = torch.zeros(SEEN, device=images.device).index_add(0, labels, gate.float())
    weights = class_weights(counts)
    supervised = weighted_cross_entropy_sum(weak, labels, weights)
    guessed = weighted_cross_entropy_sum(weak, guesses, weights, gate)
    distilled = per_task_distillation(past_logits, weak, PAST_TASK_SIZES, 2.0, gate)
    consistent = consistency_loss(weak, strong, 0.2)
    target = ensemble_target_from_logits(past_logits, past_logits.flip(0), PAST, SEEN)
    losses = [
        distillmatch_loss(supervised + guessed, BATCH + gate.sum(), consistent, distilled),
        per_task_distillation(past_logits, weak, (3, 3), 2.0),
        past_distillation(past_logits, weak, PAST, 2.0, mask=gate),
        new_task_distillation(past_logits, weak, PAST, SEEN, 2.0),
        hard_distillation(weak, guesses, gate),
        soft_global_distillation(weak, target, gate),
        confidence_calibration(weak[:, PAST:], ~gate),
        softmax_confidence(weak, SEEN).mean(),
        (similarities / divisor)[:, :SEEN].logsumexp(dim=1).mean(),
    ]
    total = torch.stack(losses).sum()
    parameters = [*network.parameters(), *detector.parameters()]
    gradients = torch.autograd.grad(total, parameters)
    return torch.stack([*losses, *(gradient.abs().sum() for gradient in gradients)]).detach()


def test_a_captured_step_of_all_losses_gives_what_it_gives_outside() -> None:
    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    network = build_network("wrn-10-1", SLOTS, "linear", generator).to(device)
    teacher = build_network("wrn-10-1", SLOTS, "linear", generator).to(device).eval()
    detector = build_network("wrn-10-1", SLOTS, "scaled-cosine", generator).to(device)
    fresh = [
        (
            torch.randn(BATCH, 3, 16, 16, generator=generator).to(device),
            torch.randint(SEEN, (BATCH,), generator=generator).to(device),
        )
        for _ in range(3)
    ]
    images, labels = (part.clone() for part in fresh[0])

    all_losses(network, teacher, detector, images, labels)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = all_losses(network, teacher, detector, images, labels)
    for new_images, new_labels in fresh:
        images.copy_(new_images)
        labels.copy_(new_labels)
        graph.replay()
        expected = all_losses(network, teacher, detector, new_images, new_labels)
        assert torch.isfinite(captured).all()
        torch.testing.assert_close(captured, expected, rtol=1e-2, atol=1e-3)


def test_a_captured_frozen_forward_leaves_the_statistics_alone() -> None:
    network = build_network("wrn-10-1", SLOTS).cuda()
    images = torch.randn(BATCH, 3, 16, 16, device="cuda")
    with frozen_statistics(network):
        network(images)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(images)
    graph.replay()
    assert network.get_buffer("backbone.last_norm.running_mean").eq(0).all()
    assert network.get_buffer("backbone.last_norm.running_var").eq(1).all()


def test_labels_are_joined_and_losses_added_up_in_a_graph() -> None:
    labels = torch.randint(9, (64,), device="cuda")
    guesses = torch.randint(9, (128,), device="cuda")
    chosen = torch.zeros(128, dtype=torch.bool, device="cuda")
    losses = torch.tensor([8.0, 0.5, 0.25], device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        joined, count = with_pseudo_labels(labels, guesses, chosen)
        return joined, distillmatch_loss(losses[0], count, losses[1], losses[2], 2.0)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        joined, total = step()
    for how_many in (0, 1, 128):
        chosen.copy_(torch.arange(128) < how_many)
        graph.replay()
        expected = torch.where(chosen, guesses, -100)
        assert torch.equal(joined, torch.cat([labels, expected]))
        assert total.item() == pytest.approx(8 / (64 + how_many) + 1.25, rel=1e-6)
