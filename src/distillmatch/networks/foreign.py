"""Backbones that are not ours: a user's module, or a classifier of torchvision or timm."""

import importlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from distillmatch.errors import ConfigError, kind_of
from distillmatch.networks.normalization import BatchNorm
from distillmatch.plugins import LIBRARIES, find_plugin

Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
"""Batch normalization as torch has it."""
CLASSIFIERS = ("fc", "classifier", "heads", "head")
"""Names of the last layers of classifiers in torchvision and timm."""

Maker = Callable[[], Any]


def find_maker(name: str) -> Maker:
    """Return the function that makes the backbone `library:name` or `module:name`."""
    library, _, model = name.partition(":")
    if library not in LIBRARIES:
        return find_plugin("distillmatch.networks", name, "network")
    try:
        found: Any = importlib.import_module(library)
    except (ImportError, RuntimeError, OSError) as error:
        # One that was built for another torch fails in ways of its own.
        raise ConfigError(
            f"network '{name}' needs {library}, which cannot be imported here "
            f"({_reason(error)}); pip install 'distillmatch[{library}]' brings it"
        ) from error
    if library == "timm":
        if not found.is_model(model):
            raise ConfigError(f"network '{name}': timm has no model '{model}'")
        return lambda: found.create_model(model, pretrained=False, num_classes=0)
    if model not in found.models.list_models(module=found.models):
        raise ConfigError(f"network '{name}': torchvision has no classifier '{model}'")
    return lambda: _without_classifier(found.models.get_model(model, weights=None), name)


def make_backbone(
    name: str, image_size: int, generator: torch.Generator | None
) -> tuple[nn.Module, int]:
    """Make a backbone and return it with the number of features that an image has.

    Modules draw their weights from torch's global generator, which is seeded by `generator`
    meanwhile and restored afterwards; without one it is used as it is.
    """
    maker, doing = find_maker(name), "could not be made"
    with torch.random.fork_rng(devices=[], enabled=generator is not None):
        if generator is not None:
            torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        try:
            made = maker()
            if not isinstance(made, nn.Module):
                raise ConfigError(f"network '{name}' must give a torch.nn.Module, not {made!r:.60}")
            doing = f"cannot take images of {image_size}×{image_size} pixels"
            with torch.no_grad():
                features = made.eval()(torch.zeros(2, 3, image_size, image_size))
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"network '{name}' {doing}: {_reason(error)}") from error
        good = isinstance(features, Tensor) and features.is_floating_point()
        if not good or features.dim() != 2 or len(features) != 2 or features.shape[1] == 0:
            came = f"shape {tuple(features.shape)}" if good else kind_of(features)
            raise ConfigError(
                f"network '{name}' must give one vector of features for each image: "
                f"of two images it gave {came}, not (2, F)"
            )
        # A function may give the same module each time, and networks must not share theirs.
        return deepcopy(made.train()), int(features.shape[1])


def with_own_normalization(backbone: nn.Module, name: str) -> nn.Module:
    """Return the backbone with our batch normalization in place of torch's, with its values.

    So `separate_statistics` works on it as well. A layer that is used twice stays one layer.
    """
    known: dict[int, nn.Module] = {}
    whole = nn.ModuleDict({"backbone": backbone})
    for parent in list(whole.modules()):
        for child_name, child in list(parent.named_children()):
            if isinstance(child, Norm):
                if id(child) not in known:
                    known[id(child)] = _converted_norm(child, name)
                setattr(parent, child_name, known[id(child)])
    return whole["backbone"]


def _converted_norm(layer: Norm, name: str) -> nn.Module:
    if layer.running_mean is None or layer.running_var is None or layer.momentum is None:
        raise ConfigError(
            f"network '{name}': its batch normalization must keep running statistics with a "
            f"momentum, not be {layer}"
        )
    # timm has layers that drop and activate after they normalize.
    further = [getattr(layer, part, None) for part in ("drop", "act")]
    modules = [part for part in further if isinstance(part, nn.Module)]
    if type(layer).forward is not nn.BatchNorm2d.forward and not modules:
        raise ConfigError(
            f"network '{name}': batch normalization must be torch's own, not {type(layer).__name__}"
        )
    ours = BatchNorm(layer.num_features, layer.momentum, layer.eps)
    ours.running_mean.copy_(layer.running_mean)
    ours.running_var.copy_(layer.running_var)
    with torch.no_grad():
        if layer.affine:
            ours.weight.copy_(layer.weight)
            ours.bias.copy_(layer.bias)
        for constant in ("weight", "bias") if not layer.affine else ():
            value = getattr(ours, constant).detach()
            delattr(ours, constant)
            ours.register_buffer(constant, value)
    return nn.Sequential(ours, *modules) if modules else ours


def _without_classifier(model: nn.Module, name: str) -> nn.Module:
    """Remove the last linear layer, so that the model returns what the layer read."""
    for attribute in CLASSIFIERS:
        part = getattr(model, attribute, None)
        if isinstance(part, nn.Linear):
            setattr(model, attribute, nn.Identity())
            return model
        if isinstance(part, nn.Sequential) and isinstance(part[-1], nn.Linear):
            part[-1] = nn.Identity()
            return model
    raise ConfigError(f"network '{name}' has no linear classification layer that could be removed")


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
