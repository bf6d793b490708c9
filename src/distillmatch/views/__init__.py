"""Views: weakly and strongly augmented images, whole batches at a time."""

from distillmatch.views.draws import to_device, view_key
from distillmatch.views.normalization import Normalization
from distillmatch.views.operations import OPERATIONS
from distillmatch.views.views import plain_views, strong_views, weak_views

__all__ = [
    "OPERATIONS", "Normalization", "plain_views", "strong_views", "to_device", "view_key",
    "weak_views",
]  # fmt: skip
