"""GD, global distillation (Lee et al. 2019), as the paper compares with it."""

from typing import Any

from pydantic import Field
from torch import Tensor

from distillmatch.config import MethodOptions, RunConfig
from distillmatch.config.base import Switch
from distillmatch.losses import ensemble_target, past_distillation, soft_global_distillation
from distillmatch.methods.forward import Batch, Logits
from distillmatch.methods.method import NetworkBuilder, TaskInfo, Training
from distillmatch.methods.parts import TEMPERATURE, Taught, TwoTeachers, label_sum


class GlobalDistillation(Taught):
    """Distill past and new classes apart, and all together from an ensemble of two teachers."""

    class Options(MethodOptions):
        """GD's own options."""

        calibration: Switch = Field(True, description="calibrate the new task's teacher")

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.calibrates = self.options.calibration

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the new task's teacher, the classifier, and fine-tune where there is a coreset."""
        frozen: dict[str, Any] = {"frozen_unlabeled": self.ensemble_outputs}
        with_past = {"frozen_labeled": self.teacher_outputs, **frozen} if task.past else {}
        main = self.main_training(task, before=self.balance_without_coreset, **with_past)
        loss, before = self.fine_tuning_loss, self.balance
        tuned = self.fine_tuning(task, loss, before, unlabeled=True, **frozen)
        return [*self.teacher_training(task), main, *tuned]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return cross entropy with Q, distillation of the past, distillation of the new task."""
        logits = self.forward(batch, task)
        terms = {"labels and Q": self.labels_and_ensemble(logits, batch, task)}
        if task.past:
            kept = past_distillation(batch.past, logits.weak, task.past, TEMPERATURE)
            terms["distillation"] = (task.past / task.seen) * kept
        if task.past and task.new:
            terms["new task"] = self.new_task(logits, batch, task)
        return terms

    def fine_tuning_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the loss of fine-tuning, which keeps Q."""
        return self.labels_and_ensemble(self.forward(batch, task), batch, task)

    def labels_and_ensemble(self, logits: Logits, batch: Batch, task: TaskInfo) -> Tensor:
        """Return cross entropy and soft global distillation, divided together by all images."""
        labels = label_sum(logits, batch.labels, self.weights)
        if not task.past:
            return labels / len(batch.labels)
        ensemble = soft_global_distillation(logits.unlabeled, batch.unlabeled_outputs.target)
        return (labels + ensemble) / len(logits.weak)

    def ensemble_outputs(self, images: Tensor, task: TaskInfo) -> TwoTeachers:
        """Return the logits of both teachers, and their target Q."""
        outputs = self.teacher_outputs(images, task)
        past = outputs.past[:, : task.past].softmax(dim=1)
        if outputs.new is None:
            return outputs._replace(target=past)
        of_new = outputs.past if self.recipe.new_class_share == "past" else outputs.new
        new = of_new[:, task.past : task.seen].softmax(dim=1)
        return outputs._replace(target=ensemble_target(past, new))
