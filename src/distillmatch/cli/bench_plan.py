"""`distillmatch bench plan`: what a stream of any size would take, from measured costs."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from distillmatch.errors import ConfigError
from distillmatch.terminal import plain_console

if TYPE_CHECKING:
    from distillmatch.bench.cost import Machine, Point
    from distillmatch.bench.plan import Plan

PRICE = 4.0
MOST = {"labeled_share": 1, "classes": 1_000_000, "image_size": 512}
"""What a stream can have, and a network that is built to count its work."""
MOST_OF_ANYTHING = 10**12
"""More is no stream, and would end in times that are no numbers."""
COUNTS = {
    "images": (float, "training images of the whole stream (default: CIFAR-100's 50,000)"),
    "test_images": (float, "test images (default: 10,000)"),
    "labeled_share": (float, "share of the training images that is labelled (default: 0.2)"),
    "classes": (int, "classes (default: 100)"),
    "tasks": (int, "tasks (default: 10)"),
    "image_size": (int, "side of the images in pixels (default: 32)"),
    "epochs": (float, "epochs a task (default: 200)"),
    "batch": (int, "labelled images a step, on all GPUs together (default: 64)"),
    "unlabeled_batch": (int, "unlabelled images a step, likewise (default: 128)"),
}


def add_plan_parser(
    kinds: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    """Describe the command."""
    parser = kinds.add_parser("plan", help="time, memory and money for a stream of any size")
    for name, (kind, text) in COUNTS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, type=kind, metavar="N", help=text
        )
    parser.add_argument("--method", choices=("dm", "base"), default="dm", help="default: dm")
    parser.add_argument("--network", default="wrn-28-2", metavar="NAME", help="default: wrn-28-2")
    parser.add_argument(
        "--gpus", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="default: 1 8 64"
    )
    parser.add_argument(
        "--price", type=float, default=PRICE, metavar="X", help=f"of a GPU-hour (default: {PRICE})"
    )
    parser.add_argument(
        "--check", action="store_true", help="show the model beside what was measured instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> None:
    """Work out a plan for each number of GPUs, or hold the model against its measurements."""
    given = {name: getattr(arguments, name) for name in COUNTS}
    numbers = [*given.items(), ("price", arguments.price), *(("gpus", n) for n in arguments.gpus)]
    for name, value in numbers:
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be more than 0, not {value}")
        most = MOST.get(name, MOST_OF_ANYTHING)
        if value is not None and value > most:
            raise ConfigError(f"{name} must be at most {most:,}, not {value}")
    from distillmatch.bench.cost import Setting, read_measured
    from distillmatch.bench.plan import make_plan, read_site

    machines, points = read_measured()
    if arguments.check:
        _show_check(machines, points, arguments.json)
        return
    from distillmatch.networks import check_network

    check_network(arguments.network)
    known = {name: value for name, value in given.items() if value is not None}
    setting = Setting(method=arguments.method, network=arguments.network, **known)
    if setting.tasks > setting.classes:
        raise ConfigError(
            f"tasks must be at most the {setting.classes} classes, not {setting.tasks}"
        )
    plans = [
        make_plan(machines["h200"], read_site(), setting, gpus, arguments.price)
        for gpus in sorted(set(arguments.gpus))
    ]
    if arguments.json:
        print(json.dumps({"setting": asdict(setting), "plans": [_as_json(p) for p in plans]}))
        return
    _show(machines["h200"], setting, plans)


def _as_json(plan: "Plan") -> dict[str, Any]:
    said = {name: getattr(plan, name) for name in ("seconds", "money", "bottleneck", "fits")}
    return {**asdict(plan), **said}


def _show(machine: "Machine", setting: Any, plans: "list[Plan]") -> None:
    console = plain_console()
    table = Table(
        title=f"{setting.method}, {setting.network}, {setting.images:,.0f} images of "
        f"{setting.image_size} px, {setting.classes:,} classes, {setting.tasks} tasks, "
        f"{setting.epochs:g} epochs, on {machine.name}"
    )
    for name in ("GPUs", "time", "money", "most of the time", "memory of a GPU", "decoding first"):
        table.add_column(name, justify="right")
    for plan in plans:
        share = plan.parts[plan.bottleneck] / plan.seconds
        size = f"{sum(plan.memory.values()) / 1e9:,.1f} GB"
        table.add_row(
            str(plan.gpus),
            duration(plan.seconds),
            f"{plan.money:,.2f}" if plan.money < 100 else f"{plan.money:,.0f}",
            f"{plan.bottleneck} {100 * share:.0f} %",
            size if plan.fits else f"{size}, too much",
            duration(plan.decode_seconds),
        )
    console.print(table)
    parts = Table(title="seconds by kind of work")
    parts.add_column("GPUs", justify="right")
    for name in plans[0].parts:
        parts.add_column(name, justify="right")
    for plan in plans:
        parts.add_row(str(plan.gpus), *(f"{spent:,.1f}" for spent in plan.parts.values()))
    console.print(parts)
    first = plans[0]
    console.print(
        f"the cache takes {first.cache_bytes / 1e9:,.1f} GB of disk, twice that while it is made; "
        f"each unlabelled image is seen {first.seen_unlabeled:.3g} times in its task; money at "
        f"{first.price:g} a GPU-hour. Arithmetic, layers, scores, views, passes and start of one "
        "GPU are from measurements; all-reduce, input and whatever is divided among GPUs are "
        "computed from data sheets.",
        soft_wrap=True,
        highlight=False,
    )


def _show_check(machines: "dict[str, Machine]", points: "list[Point]", as_json: bool) -> None:
    from distillmatch.bench.cost import predicted

    rows = [(point, predicted(machines[point.machine], point)) for point in points]
    if as_json:
        print(json.dumps([{**asdict(point), "model": value} for point, value in rows]))
        return
    table = Table(title="the cost model beside what was measured")
    for name in ("machine", "what", "measured", "model", "off by"):
        table.add_column(name, justify="left" if name in ("machine", "what") else "right")
    for point, value in rows:
        table.add_row(
            point.machine,
            point.what,
            f"{point.value:,.4g} {point.unit}",
            f"{value:,.4g}",
            f"{100 * (value / point.value - 1):+.1f} %",
        )
    console = plain_console()
    console.print(table)
    for name, machine in machines.items():
        numbers = len(machine.fitted.chosen)
        count = sum(point.machine == name for point in points)
        console.print(
            f"{name}: {machine.name}; {numbers} fitted numbers, {count} points; rates from "
            f"{machine.rates_from}",
            soft_wrap=True,
            highlight=False,
        )


def duration(seconds: float) -> str:
    """Return a time in the largest unit of which there is at least one."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
