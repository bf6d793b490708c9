"""Weights to start from: read from a file, checked against the network, and part of the run."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from made_images import images, seeded
from safetensors.torch import save_file
from small_runs import engine_for, six_classes, tiny
from torch import Tensor, nn

from distillmatch.errors import ConfigError, RunFolderError
from distillmatch.networks import Network, PretrainedWeights, build_network
from distillmatch.runs import read_result, run
from distillmatch.suite.names import bound_config


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone().contiguous() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("form", ["safetensors", "pt", "pth", "wrapped"])
def test_every_fresh_backbone_starts_from_the_files_weights(tmp_path: Path, form: str) -> None:
    pretrained = build_network("wrn-10-1", 7, generator=seeded(9))
    tensors = _tensors(pretrained.backbone)
    path = tmp_path / ("weights.pt" if form == "wrapped" else f"weights.{form}")
    if form == "safetensors":
        save_file(tensors, path)
    else:
        torch.save({"state_dict": tensors, "epoch": 3} if form == "wrapped" else tensors, path)
    engine = engine_for(tiny(method="gd", pretrained=path))
    fresh = [
        engine.method.build("classifier"),
        engine.method.build("detector", "cosine"),
        engine.method.build("teacher of task 2"),
    ]
    for network in fresh:
        assert isinstance(network, Network)
        for key, value in network.backbone.state_dict().items():
            assert torch.equal(value, tensors[key]), key
    plain = engine_for(tiny(method="gd"))
    head = fresh[0].state_dict()["head.weight"]
    assert torch.equal(plain.method.build("classifier").state_dict()["head.weight"], head)
    assert not torch.equal(fresh[2].state_dict()["head.weight"], head)


def test_a_whole_networks_file_gives_its_backbone(tmp_path: Path) -> None:
    pretrained = build_network("wrn-10-1", 7, generator=seeded(9))
    save_file(_tensors(pretrained), tmp_path / "whole.safetensors")
    weights = PretrainedWeights.read(tmp_path / "whole.safetensors")
    network = build_network("wrn-10-1", 3, weights=weights)
    assert torch.equal(network.eval().features(images(2)), pretrained.eval().features(images(2)))


def _without(tensors: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: value for name, value in tensors.items() if name != key}


BAD_WEIGHTS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (lambda t: _without(t, "first.weight"), "it lacks 'first.weight'$"),
    "all missing": (lambda t: {"x": torch.ones(1)}, "it lacks 'first.weight' and 36 more$"),
    "further": (lambda t: {**t, "last.weight": torch.ones(1)}, "it has 'last.weight', and the"),
    "shape": (
        lambda t: {**t, "first.weight": torch.ones(8, 3, 3, 3)},
        r"'first.weight' has shape \(8, 3, 3, 3\) there and \(16, 3, 3, 3\) here$",
    ),
    "no names": (lambda t: [1, 2], "must hold dense tensors by name$"),
    "sparse": (
        lambda t: {**t, "first.weight": t["first.weight"].to_sparse()},
        "must hold dense tensors by name$",
    ),
    "code": (lambda t: {"a": Path("/")}, "is damaged, or holds more than tensors by name$"),
}


@pytest.mark.parametrize("problem", BAD_WEIGHTS)
def test_weights_that_do_not_fit_are_one_sentence(tmp_path: Path, problem: str) -> None:
    change, sentence = BAD_WEIGHTS[problem]
    path = tmp_path / "weights.pt"
    torch.save(change(_tensors(build_network("wrn-10-1", 2).backbone)), path)
    with pytest.raises(ConfigError, match=sentence) as error:
        build_network("wrn-10-1", 2, weights=PretrainedWeights.read(path))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.pt", None, "No such file"),
        ("bad.safetensors", b"12345678901", "is damaged, or holds more"),
        ("bad.pt", b"12345678901", "is damaged, or holds more"),
        ("empty.pt", b"", "is damaged, or holds more"),
        ("weights.npz", b"1", "must be a .safetensors or .pt file, not"),
    ],
)
def test_a_file_without_weights_is_refused_before_anything_is_made(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        run(tiny(pretrained=tmp_path / name), dataset=six_classes())


def test_the_weights_are_part_of_what_a_run_is(tmp_path: Path) -> None:
    path, out = tmp_path / "weights.safetensors", tmp_path / "out"
    save_file(_tensors(build_network("wrn-10-1", 7, generator=seeded(9)).backbone), path)
    config = tiny(method="base", network="wrn-10-1", pretrained=path, epochs=1, task_sizes=(3, 3))
    result = run(config, out, dataset=six_classes())
    assert result["pretrained_sha256"] == sha256(path.read_bytes()).hexdigest()
    assert result["config"]["pretrained"] == str(path)
    assert read_result(out) == run(config, out, dataset=six_classes())
    without = run(config.replace(pretrained=None), dataset=six_classes())
    assert without["pretrained_sha256"] is None
    assert without["tasks"][0]["losses"] != result["tasks"][0]["losses"]
    save_file(_tensors(build_network("wrn-10-1", 7, generator=seeded(8)).backbone), path)
    with pytest.raises(RunFolderError, match="holds a run from other weights"):
        run(config, out, dataset=six_classes())
    assert bound_config(config).pretrained == path, "the bound starts from them as well"
