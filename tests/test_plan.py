"""The cost model meets what was measured, and a plan is what adding it up by hand gives."""

import json
from dataclasses import replace
from typing import Any

import pytest

from distillmatch.bench.cost import (
    NetworkWork,
    Point,
    Setting,
    classifier_phase,
    detector_phase,
    phase_seconds,
    predicted,
    read_measured,
    run_seconds,
)
from distillmatch.bench.plan import all_reduce_seconds, make_plan, read_site
from distillmatch.cli import main
from distillmatch.cli.bench_plan import duration

MACHINES, POINTS = read_measured()
H200, SITE = MACHINES["h200"], read_site()


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.machine}: {point.what}")
def test_every_measured_point_is_met_within_a_fifth(point: Point) -> None:
    model = predicted(MACHINES[point.machine], point)
    assert model == pytest.approx(point.value, rel=0.2)


def test_the_model_has_far_fewer_numbers_than_points() -> None:
    for name, machine in MACHINES.items():
        count = sum(point.machine == name for point in POINTS)
        assert 1.8 * len(machine.fitted.chosen) <= count
    assert all(point.commit and point.command.startswith("distillmatch ") for point in POINTS)


def test_the_arithmetic_is_that_of_the_layers() -> None:
    """Counted by hand for the smallest network: three stages of one block of two convolutions."""
    side, operations, elements, layers = 16, 0, 0, 0

    def convolution(given: int, made: int, kernel: int, side_in: int, side_out: int) -> None:
        nonlocal operations, elements, layers
        operations += 2 * side_out**2 * given * made * kernel**2
        elements += side_in**2 * given + side_out**2 * made
        layers += 1

    convolution(3, 16, 3, side, side)
    width, at = 16, side
    for stage, made in enumerate((16, 32, 64)):
        after = at if stage == 0 else at // 2
        convolution(width, made, 3, at, after)
        convolution(made, made, 3, after, after)
        if width != made:
            convolution(width, made, 1, at, after)
        width, at = made, after
    operations += 2 * 64 * 7
    elements += 64 + 7
    work = NetworkWork.of("wrn-10-1", 7, side)
    assert (work.operations, work.elements, work.layers) == (operations, elements, layers + 1)


def test_the_papers_schedule_has_the_steps_that_were_run() -> None:
    setting = Setting()
    classifier = classifier_phase(setting, 2)
    assert (classifier.steps, classifier.trained) == (3200, 320)
    detector = detector_phase(setting, 2)
    assert detector is not None and (detector.steps, detector.trained) == (800, 192)
    assert detector_phase(setting, 9) is None
    assert detector_phase(Setting(method="base"), 2) is None
    assert classifier_phase(setting, 0).trained == 64


def test_a_run_is_its_phases_one_after_another() -> None:
    setting = Setting(tasks=3, epochs=2)
    seconds = run_seconds(H200, setting)
    by_hand = sum(phase_seconds(H200, setting, classifier_phase(setting, n)) for n in range(3))
    assert seconds["classifier"] == pytest.approx(by_hand)
    parts = seconds["classifier"] + seconds["detector"] + seconds["evaluation"]
    assert seconds["total"] == pytest.approx(parts + H200.fitted.start)


def test_a_plan_for_one_gpu_is_the_model_of_one_gpu() -> None:
    setting = Setting()
    plan = make_plan(H200, SITE, setting, 1, 4.0)
    read = plan.cache_bytes / SITE.hash_bytes + plan.cache_bytes / SITE.count_bytes
    brought = setting.images * 3072 / SITE.host_to_device
    assert plan.seconds == pytest.approx(run_seconds(H200, setting)["total"] + read + brought)
    assert plan.money == pytest.approx(plan.seconds / 3600 * 4)
    assert plan.fits and plan.cache_bytes == 60_000 * 3072
    assert plan.parts["all-reduce"] == 0


def test_more_gpus_share_the_arithmetic_and_nothing_else() -> None:
    setting = Setting(image_size=64, batch=512, unlabeled_batch=1024)
    one, eight = (make_plan(H200, SITE, setting, gpus, 4.0) for gpus in (1, 8))
    assert eight.parts["arithmetic"] == pytest.approx(one.parts["arithmetic"] / 8)
    assert eight.parts["start"] == pytest.approx(one.parts["start"])
    assert eight.parts["layers"] > one.parts["layers"]
    assert eight.seconds > one.seconds / 8


def test_the_bottleneck_moves() -> None:
    tiny = make_plan(H200, SITE, Setting(batch=8, unlabeled_batch=8), 1, 4.0)
    assert tiny.bottleneck == "layers"
    large = Setting(image_size=128, batch=512, unlabeled_batch=1024)
    assert make_plan(H200, SITE, large, 1, 4.0).bottleneck == "arithmetic"
    slow = replace(SITE, disk_bytes=1e5, host_memory=0)
    assert make_plan(H200, slow, Setting(), 1, 4.0).bottleneck == "input"
    small = replace(H200, rates={**H200.rates, "memory": 0.0})
    fetched = make_plan(small, slow, Setting(), 1, 4.0).parts["input"]
    assert fetched > 100 * make_plan(H200, slow, Setting(), 1, 4.0).parts["input"]
    assert make_plan(H200, replace(SITE, link_latency=1.0), Setting(), 8, 4.0).bottleneck == (
        "all-reduce"
    )


def test_gradients_travel_twice_less_one_share() -> None:
    site = replace(SITE, link_latency=0.0, link_in_node=100.0)
    assert all_reduce_seconds(site, 50.0, 1) == 0
    assert all_reduce_seconds(site, 50.0, 4) == pytest.approx(2 * 0.75 * 50 / 100)


def test_what_does_not_fit_is_said() -> None:
    plan = make_plan(H200, SITE, Setting(images=1e9, classes=1000, tasks=2), 8, 4.0)
    assert not plan.fits
    assert max(plan.memory, key=lambda kind: plan.memory[kind]) == "scores of a pass"


def test_the_command_prints_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "plan", "--images", "1e6", "--gpus", "8", "1", "--price", "2", "--json"]
    assert main(words) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [plan["gpus"] for plan in said["plans"]] == [1, 8]
    assert said["plans"][1]["money"] == pytest.approx(said["plans"][1]["seconds"] / 3600 * 16)
    assert main(["bench", "plan", "--classes", "20"]) == 0
    assert "20 classes" in " ".join(capsys.readouterr().out.split())
    assert main(["bench", "plan", "--check"]) == 0
    assert "fitted numbers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--images", "0"], "images must be more than 0, not 0.0"),
        (["--labeled-share", "2"], "labeled_share must be at most 1, not 2.0"),
        (["--network", "wrn-9-1"], "the depth must be 6k + 4"),
        (["--gpus", "0"], "gpus must be more than 0, not 0"),
        (["--gpus", "1", str(10**20)], "gpus must be at most 1,000,000,000,000, not 1"),
        (["--images", "inf"], "images must be at most 1,000,000,000,000, not inf"),
        (["--epochs", "1e308"], "epochs must be at most"),
        (["--price", "nan"], "price must be more than 0, not nan"),
        (["--classes", str(10**12)], "classes must be at most 1,000,000, not 1"),
        (["--image-size", str(10**6)], "image_size must be at most 512, not 1000000"),
        (["--tasks", "1000", "--classes", "10"], "tasks must be at most the 10 classes, not 1000"),
    ],
)
def test_impossible_plans_are_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "plan", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_times_are_shown_in_units_that_suit_them() -> None:
    shown = [duration(seconds) for seconds in (5, 90, 7200, 3 * 86400)]
    assert shown == ["5.0 s", "1.5 min", "2.0 h", "3.0 days"]
