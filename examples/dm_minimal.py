"""The paper's method in one file, in plain torch, with our streams, views and losses: no engine.

Its losses are those of `distillmatch run --method dm`, recipe `paper`, without a coreset.
"""

from copy import deepcopy
from math import ceil

import torch
from torch import nn

from distillmatch import RunConfig, build_stream, load_source, losses
from distillmatch.engine.batch_order import batch_sizes
from distillmatch.methods.detector import EPSILONS, perturbed_scores
from distillmatch.methods.forward import forward_groups
from distillmatch.networks import build_network, by_batch_statistics, named_generator
from distillmatch.randomness import permutation
from distillmatch.views import Normalization, strong_views, view_key, weak_views

TPR, CONFIDENT, TEMPERATURE, CLIP = 0.5, 0.85, 2.0, 1.0


class DistillMatch:
    """The classifier θ, the detector φ, and their frozen copies from the last task."""

    def __init__(self, config, dataset, stream):
        self.config, self.dataset, self.stream, self.past = config, dataset, stream, ()
        self.normalization = Normalization.of(dataset.train.images)
        given, drawn = (config.network, sum(stream.task_sizes)), {"initial_weights": "uniform"}
        self.theta, self.phi = (
            build_network(*given, head, named_generator(config.seed, name), **drawn).eval()
            for name, head in (("classifier", "linear"), ("detector", "scaled-cosine"))
        )

    def learn(self, number):
        """Learn a task and return the mean loss of each epoch of θ and of φ."""
        given = self.stream.experience(number)
        self.number, self.sizes, self.seen = number, given.task_sizes, given.seen
        pixels = torch.from_numpy(given.images[:]), torch.from_numpy(given.unlabeled[:])
        self.images, self.unlabeled = (one.permute(0, 3, 1, 2) for one in pixels)
        self.labels, rows = torch.from_numpy(given.labels), torch.arange(len(given.labels))
        self.weights = self.balance()
        means = {"classifier": self.train("classifier", rows, self.config.epochs)}
        if number + 1 < len(self.stream):
            before = [(self.labels[:i] == y).sum() for i, y in enumerate(self.labels)]
            half = torch.stack(before) < self.labels.bincount()[self.labels] // 2
            means["detector"] = self.train("detector", rows[half], self.config.epochs // 2)
            self.calibrate(self.images[~half])
        return means

    def balance(self):
        """Eq. 3: labels, and as many pseudo-labels as an epoch meets."""
        counts, found = self.labels.bincount(minlength=self.seen).float(), None
        if self.past:
            sizes = batch_sizes(len(self.unlabeled), self.config.unlabeled_batch)
            shown = self.views(self.unlabeled, "unlabeled", 0, "pass")
            labels, accepted = self.pseudo(shown, sizes)
            met = ceil(len(self.labels) / self.config.batch) * self.config.unlabeled_batch
            found = labels[accepted].bincount(minlength=self.seen) * met / len(self.unlabeled)
        return losses.class_weights(counts, found)

    def pseudo(self, images, sizes):
        """Return θₙ₋₁'s hard labels, and whether φₙ₋₁'s score reaches τ_OoD, batch by batch."""
        (theta, phi, epsilon, threshold), past = self.past, self.seen - self.sizes[-1]
        with by_batch_statistics([theta, phi], sizes), torch.no_grad():
            labels = theta(images)[:, :past].argmax(1)
            return labels, perturbed_scores(phi, images, past, [epsilon])[:, 0] >= threshold

    def train(self, name, rows, epochs):
        """Train θ or φ on some labeled images by the paper's schedule."""
        network, means = self.theta if name == "classifier" else self.phi, []
        optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
        for epoch in range(epochs):
            found, decays = [], sum(epoch >= round(share * epochs) for share in (0.6, 0.8, 0.9))
            optimizer.param_groups[0]["lr"] = 0.1 * 0.1**decays
            for step in self.steps(name, rows, epoch):
                loss = self.loss(network.train(), *step)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), CLIP)
                optimizer.step()
                found.append(loss.item())
            means.append(sum(found) / len(found))
        return means

    def loss(self, net, x, y, u, s, labels=None, accepted=None):
        """Eq. 5 of labeled views x, y, and of weak and strong views u, s with pseudo-labels."""
        cross_entropy = losses.weighted_cross_entropy_sum
        if not self.past:
            return cross_entropy(net(x)[:, : self.seen], y, self.weights) / len(y)
        beside = accepted.byte().argsort(descending=True, stable=True)[: ceil(TPR * len(u))]
        again, mask = torch.arange(len(beside)) % len(x), accepted[beside].view(-1, 1, 1, 1)
        joined = torch.where(mask, u[beside], x[again])  # labeled images fill what is left
        groups = [[u, s] if len(s) else [], [x, joined], [x, u]]
        agreeing, alone, both = forward_groups(net, groups, self.seen)
        weak = both[len(x) :].index_copy(0, beside, alone[len(x) :])
        total = cross_entropy(alone[: len(x)], y, self.weights)  # eq. 6
        total = total + cross_entropy(weak, labels, self.weights, accepted)  # eq. 7
        total = total / (len(x) + accepted.sum())
        if len(s):  # eq. 4
            total += losses.consistency_loss(agreeing[: len(u)], agreeing[len(u) :], CONFIDENT)
        teacher = self.past[net is self.phi]
        with by_batch_statistics([teacher], [len(both)]), torch.no_grad():
            past = teacher(torch.cat([x, u]))  # for eq. 1
        return total + losses.per_task_distillation(past, both, self.sizes[:-1], TEMPERATURE)

    def calibrate(self, held_out):
        """Keep frozen copies; choose ε, then τ_OoD so that a share of held-out images reach it."""
        theta, phi = (deepcopy(one).requires_grad_(False).eval() for one in (self.theta, self.phi))
        views = [self.views(held_out, "second-half", view, "pass") for view in range(4)]
        tried = EPSILONS["scaled-cosine"]
        epsilon = tried[perturbed_scores(phi, views[0], self.seen, tried).mean(0).argmin()] / 2
        scores = perturbed_scores(phi, torch.cat(views), self.seen, [epsilon])
        self.past = theta, phi, epsilon, float(losses.threshold_at_tpr(scores, TPR))

    def steps(self, name, rows, epoch):
        """Yield the batches of an epoch: a pass over labels; unlabeled images go round."""
        ours = self.batches("epoch", name, len(rows), self.config.batch, epoch, 1)
        size, steps = self.config.unlabeled_batch, len(ours)
        first, skipped = divmod(epoch * steps, ceil(len(self.unlabeled) / size))
        theirs = self.batches("round", name, len(self.unlabeled), size, first, steps + 1)
        theirs = theirs[skipped : skipped + steps]
        chosen, others = rows[torch.cat(ours)], self.unlabeled[torch.cat(theirs)]
        x, u = self.views(self.images[chosen], name, epoch), self.views(others, name, epoch, "u")
        s = self.views(others if name == "classifier" else others[:0], name, epoch, "strong")
        cuts = list(map(len, theirs))
        parts = [u, s, *(self.pseudo(u, cuts) if self.past else ())]
        parts = [one.split(cuts) if len(one) else [one] * steps for one in parts]
        cuts = list(map(len, ours))
        yield from zip(x.split(cuts), self.labels[chosen].split(cuts), *parts, strict=True)

    def batches(self, why, name, count, size, first, passes):
        """Cut passes over some images, each in an order of its own, into batches."""
        keys = [(self.config.seed, why, self.number, name, first + i) for i in range(passes)]
        return [b for key in keys for b in torch.from_numpy(permutation(count, *key)).split(size)]

    def views(self, pixels, name, epoch, kind="labelled"):
        """Draw views as the engine does: the key says what they are for."""
        name = f"pass over {name}" if kind == "pass" else name
        words = {"strong": ["strong"], "u": ["weak", "unlabelled"]}.get(kind, ["weak", kind])
        key = view_key(self.config.seed, *words, self.number, name, epoch)
        return (strong_views if kind == "strong" else weak_views)(pixels, key, self.normalization)


if __name__ == "__main__":
    config = RunConfig(tasks=3, epochs=4, network="wrn-10-1", batch=32, unlabeled_batch=64)
    learner = DistillMatch(config, data := load_source(config), build_stream(data, config))
    print(*map(learner.learn, range(3)), sep="\n")
