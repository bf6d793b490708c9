"""Gates: what decides that an unlabelled image is of a past class, so that it is labelled."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.losses import (
    accepted,
    class_means,
    energy_score,
    pseudo_labels,
    relative_mahalanobis,
    shrunk_covariance,
    softmax_confidence,
    standardized_sum,
    threshold_at_fpr,
    threshold_at_tpr,
    whitening,
)
from distillmatch.methods.detector import (
    CALIBRATION_VIEWS,
    DETECTOR_LOGITS,
    FamiliarityDetector,
    held_out_images,
    true_positive_rate,
)
from distillmatch.methods.method import ImageSet, Method, Passes, Scores, TaskInfo
from distillmatch.networks import Network

GATE = "gate"
TRUTH = "truth"
JUDGES = "judges"
FEATURES = "features"
MEANS, WITHIN = "class means", "whitening within classes"
BACKGROUND_MEAN, BACKGROUND = "background mean", "whitening of the background"


class Gate(ABC):
    """Scores images by what was learned up to the last task, and accepts some.

    One that `learns` can score only after its calibration, for which the last task has no use.
    """

    learns: ClassVar[bool] = False

    def __init__(self, method: Method) -> None:
        self.method = method

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Set what the next task needs, once all networks of this one are trained."""
        return

    def prepare(self, passes: Passes, task: TaskInfo) -> None:
        """Set what a task needs that only its own images tell, before any of them is judged.

        A run that is continued calls it again: it must come to the same by the frozen models.
        """
        return

    @abstractmethod
    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return the logits of a classifier of so many classes, and how familiar images look.

        Both are asked for at once because most gates score by the same forward.
        """

    @abstractmethod
    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Return which unlabelled images are believed to be of past classes."""


class ThresholdGate(Gate):
    """Accepts images whose score reaches a threshold."""

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare with the threshold."""
        return accepted(scores[GATE], self.method.values["threshold"])

    def set_threshold(self, passes: Passes, task: TaskInfo, over: ImageSet) -> None:
        """Set the threshold to the score that δ of some labelled images reach."""
        scores = self._scores(passes, over, task.seen, "classifier")
        rate = true_positive_rate(self.method.config, task.number + 1)
        self.method.values["threshold"] = float(threshold_at_tpr(scores, rate))

    def prepare(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold to the score that a share of known strangers reach, if one is given.

        Those are the labelled images of the new classes, of which nothing was learned so far: δ can
        only be measured on images that most gates' networks were trained on, this on new ones.
        """
        rate = self.method.config.false_positive_rate
        if rate is None or not task.past:
            return
        strange = passes.labels("new") >= task.past
        if not strange.any():
            # One's own data may bring no new class; then the threshold of δ stays.
            return
        scores = self._scores(passes, "new", task.past, "past")
        known_strangers = scores[strange.repeat(CALIBRATION_VIEWS)]
        self.method.values["threshold"] = float(threshold_at_fpr(known_strangers, rate))

    def _scores(self, passes: Passes, over: ImageSet, classes: int, network: str) -> Tensor:
        """Score the views that a threshold is set on."""

        def score(images: Tensor) -> Scores:
            return {GATE: self.ask(images, classes, network)[1][GATE]}

        return passes.score(score, over, CALIBRATION_VIEWS)[GATE]

    def learned(self, name: str) -> Tensor:
        """Return what calibration has kept under a name."""
        if name not in self.method.tensors:
            raise ConfigError(
                f"gate '{self.method.config.gate}' must be chosen before the first task is "
                "learned: of the tasks so far it has learned nothing"
            )
        return self.method.tensors[name]


class DetectorGate(ThresholdGate):
    """The paper's: a detector of its own, calibrated to a true-positive rate."""

    learns = True

    def __init__(self, method: Method, detector: FamiliarityDetector) -> None:
        super().__init__(method)
        self.detector = detector

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Calibrate the detector."""
        self.detector.calibrate(passes, task)

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Ask the detector too, as it was at the end of the last task it was trained in."""
        score, of_detector = self.detector.ask(images, classes)
        return self.method.networks[network](images), {GATE: score, DETECTOR_LOGITS: of_detector}


class EnsembleGate(DetectorGate):
    """The paper's detector and the classifier's free energy together.

    Each is standardized by its mean and deviation over the held-out images, and the two are added.
    Held out they are from the detector alone: the classifier was trained on them, so the energies
    of new images lie lower than those that they are standardized by.
    """

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Calibrate the detector, then take both scores' means and deviations and the threshold."""
        super().calibrate(passes, task)
        held_out = held_out_images(passes)

        def judge(images: Tensor) -> Scores:
            logits = self.method.classifier(images)
            score, _ = self.detector.ask(images, task.seen)
            return {JUDGES: self._judges(score, logits, task.seen)}

        judges = passes.score(judge, held_out, CALIBRATION_VIEWS)[JUDGES]
        deviations = judges.std(dim=0, correction=0)
        # A judge to whom all images are alike has no deviation to divide by, and decides nothing.
        deviations = torch.where(deviations > 0, deviations, 1.0)
        self.method.tensors[JUDGES] = torch.stack([judges.mean(dim=0), deviations])
        self.set_threshold(passes, task, held_out)

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return the sum of both scores."""
        logits, scores = super().ask(images, classes, network)
        return logits, {**scores, GATE: self._sum(scores[GATE], logits, classes)}

    def _sum(self, score: Tensor, logits: Tensor, classes: int) -> Tensor:
        means, deviations = self.learned(JUDGES)
        return standardized_sum(self._judges(score, logits, classes), means, deviations)

    def _judges(self, score: Tensor, logits: Tensor, classes: int) -> Tensor:
        return torch.stack([score, energy_score(logits, classes)], dim=1)


class SoftmaxGate(ThresholdGate):
    """The classifier's own confidence, against a fixed threshold."""

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        method.values["threshold"] = method.config.gate_confidence

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return the largest softmax probability."""
        logits = self.method.networks[network](images)
        return logits, {GATE: softmax_confidence(logits, classes)}


class EnergyGate(ThresholdGate):
    """The classifier's own free energy (Liu et al. 2020): no detector is trained or asked.

    The threshold is the score that δ of the labelled images reach, though the classifier was
    trained on them: their scores are higher than those of new images of the same classes.
    """

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return the energy over the classes that were learned."""
        logits = self.method.networks[network](images)
        return logits, {GATE: energy_score(logits, classes)}

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold to the score that δ of the labelled images reach."""
        self.set_threshold(passes, task, "labeled")


class FeatureGate(ThresholdGate):
    """How near an image's features are to the mean of a class: the relative Mahalanobis score.

    The features are the classifier's own (Lee et al. 2018), and no detector is trained. All classes
    share a covariance: 50 to 100 images of a class are fewer than the features, and one of its own
    could not be inverted. For the same reason it is shrunk (Ledoit and Wolf 2004), which takes no
    constant that would have to be tuned. The background that the distance is relative to (Ren et
    al. 2021) is that of the task's unlabelled images, which are what familiar images have to be
    told from.

    Of past classes there are no images, and the classifier has changed since their task, so that
    their old means are no longer where its features are. They are taken anew from the unlabelled
    images that were accepted as theirs in this task: some are mistaken, but all are seen by the
    classifier as it is now. Only a class for which none was accepted keeps its old mean.

    The threshold is the score that δ of the labelled images reach, which are trained on and part of
    the means: those of new images of the same classes are lower.
    """

    learns = True

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return the score by the means of the classes that were learned."""
        asked = self._network(network)
        features, means = asked.features(images), self.learned(MEANS)
        # Distances rounded to eight bits would tie.
        with torch.autocast(features.device.type, enabled=False):
            score = relative_mahalanobis(
                features.to(means.dtype),
                means[:classes],
                self.learned(WITHIN),
                self.learned(BACKGROUND_MEAN),
                self.learned(BACKGROUND),
            )
        return asked.classify(features), {GATE: score}

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Take means and covariances by the classifier of this task, and set the threshold."""
        unlabeled = passes.score(lambda images: self._look(images, task), "unlabeled")
        environment = unlabeled[FEATURES].double()
        labeled = passes.score(
            lambda images: {FEATURES: self._network("classifier").features(images)}, "labeled"
        )
        features, labels = labeled[FEATURES].double(), passes.labels("labeled")
        if task.past:
            believed = self.accepts(unlabeled, task)
            taken_for = pseudo_labels(unlabeled["past"], task.past)
            features = torch.cat([features, environment[believed]])
            labels = torch.cat([labels, taken_for[believed]])
        means = class_means(features, labels, task.seen)
        if task.past:
            old = self.learned(MEANS)[: task.past].to(means.dtype)
            means[: task.past] = torch.where(means[: task.past].isnan(), old, means[: task.past])
        background = environment if len(environment) else features
        center = background.mean(dim=0)
        learned = {
            MEANS: means,
            WITHIN: whitening(shrunk_covariance(features - means[labels])),
            BACKGROUND_MEAN: center,
            BACKGROUND: whitening(shrunk_covariance(background - center)),
        }
        self.method.tensors.update((name, one.float()) for name, one in learned.items())
        self.set_threshold(passes, task, "labeled")

    def _look(self, images: Tensor, task: TaskInfo) -> Scores:
        """Return features of this task's classifier, and what the last one believed."""
        scores = {FEATURES: self._network("classifier").features(images)}
        if task.past:
            logits, familiarity = self.ask(images, task.past, "past")
            scores |= {"past": logits, **familiarity}
        return scores

    def _network(self, name: str) -> Network:
        network = self.method.networks[name]
        assert isinstance(network, Network)
        return network


class OpenGate(Gate):
    """Everything is accepted: what the method is without a gate."""

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Know nothing of familiarity."""
        return self.method.networks[network](images), {}

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Accept all."""
        return torch.ones_like(scores["past"][:, 0], dtype=torch.bool)


class TruthGate(OpenGate):
    """An oracle, for diagnosis only: accepts exactly the images that are of past classes."""

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Look at the truth, which the engine gives to methods that declare this need."""
        return (scores[TRUTH] >= 0) & (scores[TRUTH] < task.past)


def make_gate(config: RunConfig, method: Method, detector: FamiliarityDetector | None) -> Gate:
    """Return the configured gate."""
    if detector is not None:
        return (EnsembleGate if config.gate == "ensemble" else DetectorGate)(method, detector)
    gates: dict[str, type[SoftmaxGate | EnergyGate | FeatureGate | OpenGate]] = {
        "softmax": SoftmaxGate,
        "energy": EnergyGate,
        "features": FeatureGate,
        "everything": OpenGate,
        "truth": TruthGate,
    }
    return gates[config.gate](method)
