"""Backbones that are not ours: one's own, torchvision's and timm's."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from made_images import images, seeded, together_and_apart
from torch import Tensor, nn

from distillmatch.errors import ConfigError
from distillmatch.networks import (
    BatchNorm,
    PretrainedWeights,
    build_network,
    check_network,
)

OWN = "examples.own_network:SmallNet"


class Classifier(nn.Module):
    """A stand-in for a classifier of a library: features, then a layer called as it is told."""

    def __init__(self, last: str, layers: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6, eps=1e-3, momentum=0.05)
        setattr(self, last, layers())
        self.last = last

    def forward(self, pictures: Tensor) -> Tensor:
        maps = self.norm(self.convolution(pictures)).relu()
        features: Tensor = getattr(self, self.last)(maps.mean(dim=(2, 3)))
        return features


class NormalizeAndActivate(nn.BatchNorm2d):
    """As timm has it: batch normalization that drops and activates, too."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = nn.SiLU()

    def forward(self, maps: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(maps)))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: Classifier("fc", lambda: nn.Linear(6, 1000)),
    "mobilenet": lambda: Classifier(
        "classifier", lambda: nn.Sequential(nn.Dropout(), nn.Linear(6, 1000))
    ),
    "vit": lambda: Classifier("heads", lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1000))),
    "squeezenet": lambda: Classifier("classifier", nn.Identity),
}


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put stand-ins in the place of torchvision and timm, with the functions of theirs we use."""

    def get_model(name: str, weights: object) -> nn.Module:
        assert weights is None, "nothing may be fetched"
        return MODELS[name]()

    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        assert not pretrained and num_classes == 0
        return Classifier("head", nn.Identity)

    models = SimpleNamespace(get_model=get_model, list_models=lambda module: list(MODELS))
    timm = SimpleNamespace(create_model=create_model, is_model=lambda name: name == "resnet18")
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    monkeypatch.setitem(sys.modules, "timm", timm)


def unfinished() -> nn.Module:
    raise ValueError("no such\nlayer")


flat = nn.Flatten


MAKERS: dict[str, Callable[..., object]] = {
    "maps": lambda: nn.Conv2d(3, 4, 3),
    "only_large": lambda: nn.Sequential(nn.Conv2d(3, 4, 16), nn.Flatten()),
    "needs_an_argument": lambda _: None,
    "nothing": lambda: None,
    "without_statistics": lambda: nn.Sequential(
        nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()
    ),
    "synchronized": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(192, 3), nn.SyncBatchNorm(3).eval()
    ),
}
globals().update(MAKERS)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(5, 3), nn.LazyBatchNorm2d(), nn.Flatten())


def all_kinds() -> nn.Module:
    shared = nn.BatchNorm2d(4, momentum=0.3, eps=1e-4)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        shared,
        NormalizeAndActivate(4),
        nn.Sequential(nn.Conv2d(4, 4, 3), shared, nn.BatchNorm2d(4, affine=False)),
        nn.Flatten(),
        nn.BatchNorm1d(64),
    )


def test_a_function_or_class_gives_the_backbone_and_its_features_are_counted() -> None:
    network = build_network(OWN, 5)
    assert network.feature_count == 64 and network.head.slots.out_features == 5
    assert network.features(images(3)).shape == (3, 64)
    assert build_network("test_foreign:flat", 2, image_size=8).feature_count == 3 * 8 * 8
    assert build_network("test_foreign:lazy", 2, image_size=8).feature_count == 5 * 6 * 6
    assert network.training


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torchvision:resnet19", "torchvision has no classifier 'resnet19'"),
        ("torchvision:squeezenet", "has no linear classification layer that could be removed"),
        ("timm:resnet19", "timm has no model 'resnet19'"),
        ("test_foreign:maps", r"of two images it gave shape \(2, 4, 6, 6\), not \(2, F\)"),
        ("test_foreign:only_large", "cannot take images of 8×8 pixels: RuntimeError"),
        ("test_foreign:unfinished", "could not be made: ValueError: no such layer$"),
        ("test_foreign:needs_an_argument", "could not be made: TypeError"),
        ("test_foreign:nothing", "must give a torch.nn.Module, not None"),
        ("test_foreign:without_statistics", "must keep running statistics"),
        ("test_foreign:synchronized", "must be torch's own, not SyncBatchNorm"),
        ("test_foreign:neverland", "has no 'neverland'"),
        ("nowhere:Net", "network 'nowhere:Net': there is no module 'nowhere'"),
    ],
)
def test_a_backbone_that_cannot_be_used_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        build_network(name, 2, image_size=8)
    assert "\n" not in str(error.value)


def test_exchanged_normalization_computes_learns_and_loads_as_torchs_does(tmp_path: Path) -> None:
    network = build_network("test_foreign:all_kinds", 2, generator=seeded(1), image_size=8)
    theirs = all_kinds()
    ours = [layer for layer in network.modules() if isinstance(layer, BatchNorm)]
    assert len(ours) == 4, "the shared layer is one layer still"
    values = network.backbone.state_dict()
    values = {key.replace("2.0.", "2."): value for key, value in values.items()}
    theirs.load_state_dict(
        {key: values[key] for key in theirs.state_dict() if key in values}, strict=False
    )
    assert sum(p.numel() for p in theirs.parameters()) == sum(
        p.numel() for p in network.backbone.parameters()
    ), "constants of a layer that learns nothing must not learn"
    for step in range(3):
        batch = 2 * images(6, seed=step) + 1
        torch.testing.assert_close(network.features(batch), theirs(batch))
    network.eval()
    theirs.eval()
    torch.testing.assert_close(network.features(images(4)), theirs(images(4)))
    torch.save(theirs.state_dict(), tmp_path / "weights.pt")
    weights = PretrainedWeights.read(tmp_path / "weights.pt")
    again = build_network("test_foreign:all_kinds", 2, image_size=8, weights=weights)
    torch.testing.assert_close(again.eval().features(images(4)), theirs(images(4)))
    one, two = (
        build_network("test_foreign:all_kinds", 3, "cosine", seeded(4), image_size=8)
        for _ in range(2)
    )
    together_and_apart(one, two)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("torchvision:resnet18", 6),
        ("torchvision:mobilenet", 6),
        ("torchvision:vit", 5),
        ("timm:resnet18", 6),
    ],
)
def test_a_librarys_classifier_gives_what_went_into_its_last_layer(
    name: str, features: int
) -> None:
    network = build_network(name, 3)
    assert network.feature_count == features
    assert network(images(2)).shape == (2, 3)
    assert not any(parameter.shape[0] == 1000 for parameter in network.parameters())
    assert any(isinstance(layer, BatchNorm) for layer in network.modules())


def test_a_broken_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms is missing')\n")
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    sentence = r"needs torchvision, which cannot be imported here \(RuntimeError: operator nms"
    with pytest.raises(ConfigError, match=sentence):
        check_network("torchvision:resnet18")
