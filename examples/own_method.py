"""A method of your own: learning without forgetting, with consistency on strong views.

distillmatch run --method own_method:LwfMatch --past-weight 2 --out result
"""

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from distillmatch.config import MethodOptions
from distillmatch.losses import consistency_loss, past_distillation
from distillmatch.methods import TEMPERATURE, Batch, Method, TaskInfo


class LwfMatch(Method):
    """Cross entropy, FixMatch's consistency, and one distillation over all past classes."""

    class Options(MethodOptions):
        """Options of the command line, and keys under `options` in a file."""

        past_weight: float = Field(1.0, description="weight of the distillation")

    strong_views = True
    keeps_past = True

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return named terms, which are added up and logged."""
        logits = self.forward(batch, task)
        terms = {
            "labels": cross_entropy(logits.labeled, batch.labels),
            "consistency": consistency_loss(logits.unlabeled, logits.strong, 0.9),
        }
        if task.past:
            past = past_distillation(batch.past, logits.weak, task.past, TEMPERATURE)
            terms["distillation"] = self.options.past_weight * past
        return terms
