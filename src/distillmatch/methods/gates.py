"""The gates: the paper's detector, what stands in its place for study, and oracles."""

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.losses import (
    class_means,
    energy_score,
    pseudo_labels,
    relative_mahalanobis,
    shrunk_covariance,
    softmax_confidence,
    standardized_sum,
    whitening,
)
from distillmatch.methods.detector import (
    CALIBRATION_VIEWS,
    DETECTOR_LOGITS,
    FamiliarityDetector,
    held_out_images,
)
from distillmatch.methods.gate import GATE, Gate, ThresholdGate, all_accepted
from distillmatch.methods.method import Method, Passes, Scores, TaskInfo
from distillmatch.methods.newness import CrossedNewnessGate, NewnessGate
from distillmatch.networks import Network

TRUTH = "truth"
JUDGES = "judges"
FEATURES = "features"
MEANS, WITHIN = "class means", "whitening within classes"
BACKGROUND_MEAN, BACKGROUND = "background mean", "whitening of the background"


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
        return all_accepted(scores)


class TruthGate(OpenGate):
    """An oracle, for diagnosis only: accepts exactly the images that are of past classes."""

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Look at the truth, which the engine gives to methods that declare this need."""
        return (scores[TRUTH] >= 0) & (scores[TRUTH] < task.past)


class TruthOfNewGate(OpenGate):
    """An oracle, for diagnosis only: accepts exactly the images that are not of new classes."""

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Look at the truth, which the engine gives to methods that declare this need."""
        return (scores[TRUTH] < task.past) | (scores[TRUTH] >= task.seen)


def make_gate(config: RunConfig, method: Method, detector: FamiliarityDetector | None) -> Gate:
    """Return the configured gate."""
    if detector is not None:
        return (EnsembleGate if config.gate == "ensemble" else DetectorGate)(method, detector)
    gates: dict[str, type[SoftmaxGate | EnergyGate | FeatureGate | NewnessGate | OpenGate]] = {
        "softmax": SoftmaxGate,
        "energy": EnergyGate,
        "features": FeatureGate,
        "newness": NewnessGate,
        "newness-crossed": CrossedNewnessGate,
        "everything": OpenGate,
        "truth": TruthGate,
        "truth-new": TruthOfNewGate,
    }
    return gates[config.gate](method)
