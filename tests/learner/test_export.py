"""A learner's classifier in other programs, from an ONNX file."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from distillmatch.cli import main
from distillmatch.learner import ContinualLearner, export
from distillmatch.networks.efficientnet_lite import has_pretrained
from distillmatch.sources.images import square

COUNTS = (1, 3, 17)
SIDE = 8
SIZES = ((31, 50), (90, 64), (5, 12), (8, 9))


@pytest.fixture(name="state", scope="module")
def state_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learn two tasks, so that the second one's classes were added to a network."""
    learner = ContinualLearner(network="wrn-10-1", epochs=3, batch=8, device="cpu", image_size=SIDE)
    for labels in (["b", "d"], ["a", "c", "e"]):
        shown = np.repeat(labels, 6)
        learner.partial_fit(pictures(len(shown), len(labels)), shown)
    path = tmp_path_factory.mktemp("learner") / "state"
    learner.save(path)
    return path


def pictures(count: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


def photograph(height: int, width: int) -> NDArray[np.uint8]:
    """Return a smooth picture with noise on it."""
    draw = np.random.default_rng(height)
    smooth = Image.fromarray(draw.integers(0, 256, (3, 4, 3), np.uint8))
    image = np.array(smooth.resize((width, height), Image.Resampling.BICUBIC), np.int64)
    image += draw.integers(-20, 21, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def given(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images as an exported file takes them."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def test_onnxruntime_gives_the_same_probabilities(state: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    file = tmp_path / "learner.onnx"
    assert main(["export", str(state), "--onnx", str(file)]) == 0
    learner = ContinualLearner.load(state, device="cpu")
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    for count in COUNTS:
        images = pictures(count, 100 + count)
        (found,) = session.run(["probabilities"], {"images": given(images)})
        assert found.shape == (count, 5)
        np.testing.assert_allclose(found, learner.predict_proba(images), atol=1e-4, rtol=0)
    for height, width in SIZES:
        image = photograph(height, width)
        (found,) = session.run(["probabilities"], {"images": given(image[None])})
        np.testing.assert_allclose(found, learner.predict_proba([image]), atol=1e-3, rtol=0)
    model = onnx.load(file)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", export.OPSET)]
    props = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert props["labels"] == list(learner.classes_)
    assert props["image_size"] == SIDE and props["pixels"] == "uint8"
    assert props["filter"].startswith("bicubic")
    seen = np.concatenate([pictures(12, 2)]).reshape(-1, 3) / 255
    np.testing.assert_allclose(props["mean"], seen.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(props["std"], seen.std(axis=0), atol=1e-6)


@pytest.mark.skipif(not has_pretrained(), reason="the pretrained network is not installed")
def test_the_lines_on_the_page_reproduce_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are taken from the page as they stand; the photograph is large, and turned."""
    pytest.importorskip("onnxruntime")
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    lines = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    learner = ContinualLearner("features", image_size=64, device="cpu")
    learner.partial_fit([photograph(70 + n, 90) for n in range(9)], list("abc") * 3).save("fish")
    assert main(["export", "fish", "--onnx", "fish.onnx"]) == 0
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "new").mkdir()
    Image.fromarray(photograph(301, 400)).save("new/1.jpg", exif=exif)
    capsys.readouterr()
    exec(compile(lines, "docs/export.md", "exec"), {})
    label, probability = capsys.readouterr().out.split()
    assert label == learner.predict(["new/1.jpg"])[0]
    assert float(probability) == pytest.approx(learner.predict_proba(["new/1.jpg"]).max(), abs=1e-3)


@pytest.mark.parametrize("size", [(8, 8), (31, 50), (64, 20), (5, 12), (301, 400)])
def test_images_are_resized_as_pillow_resizes_them(size: tuple[int, int]) -> None:
    image = photograph(*size)
    found = export.fitted(torch.from_numpy(image).permute(2, 0, 1)[None].float(), SIDE)[0]
    wrong = np.abs(found.permute(1, 2, 0).numpy() - square(Image.fromarray(image), SIDE))
    assert wrong.max() <= 1  # Pillow's versions begin with rows or with columns, and round both


def test_an_export_that_cannot_be_made_leaves_no_file(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnx" else find(name))
    for words, sentence in (
        (["--onnx", "x.onnx"], "pip install 'distillmatch[onnx]'"),
        ([], "--onnx"),
    ):
        assert main(["export", str(state), *words]) == 2
        refusal = capsys.readouterr().err
        assert sentence in refusal and refusal.count("\n") == 1
    assert not list(tmp_path.iterdir())
