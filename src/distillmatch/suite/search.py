"""Ways to search a space: each proposes points in batches and is sent their scores.

A search is a generator. It yields a list of points and receives a list of scores, higher being
better and `None` standing for a point that failed. What it proposes depends on these alone, so a
search that was interrupted is simply begun again: points with results cost nothing.
"""

from collections.abc import Generator
from itertools import product
from math import prod
from typing import Any, Literal

from distillmatch.suite.space import Space, Values

SearchName = Literal["coordinate", "grid", "random", "tpe"]
DRAWING = ("random", "tpe")
"""The searches that draw a given number of trials."""
Score = float | None
Search = Generator[list[Values], list[Score], None]

ASKS_PER_TRIAL = 10
"""A sampler may propose points again that it has tried; it is asked at most so often."""


def grid(space: Space) -> Search:
    """Propose every point, all at once."""
    yield [dict(zip(space, values, strict=True)) for values in product(*space.values())]


def coordinate(space: Space, start: Values) -> Search:
    """Go through one hyperparameter after the other, the others being the best so far."""
    best = start
    for name, values in space.items():
        points = [{**best, name: value} for value in values]
        scores = yield points
        known = [(score, -i) for i, score in enumerate(scores) if score is not None]
        if known:
            best = points[-max(known)[1]]


def sampled(
    space: Space, kind: Literal["random", "tpe"], trials: int, together: int, seed: int
) -> Search:
    """Propose `trials` different points, `together` at a time, as Optuna's sampler draws them."""
    import optuna  # noqa: PLC0415  an extra

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler: Any = optuna.samplers.TPESampler if kind == "tpe" else optuna.samplers.RandomSampler
    study = optuna.create_study(direction="maximize", sampler=sampler(seed=seed))
    wanted, asked = number_of_trials(kind, space, trials), 0
    tried: dict[tuple[int, ...], Score] = {}
    while len(tried) < wanted and asked < ASKS_PER_TRIAL * wanted:
        batch = {}
        for _ in range(min(together, wanted - len(tried))):
            drawn = study.ask()
            asked += 1
            # Places in the lists, so that the sampler knows which values are neighbors.
            batch[drawn] = tuple(
                drawn.suggest_int(name, 0, len(values) - 1) for name, values in space.items()
            )
        new = list(dict.fromkeys(place for place in batch.values() if place not in tried))
        if new:
            scores = yield [_point(space, place) for place in new]
            tried |= dict(zip(new, scores, strict=True))
        lowest = min((score for score in tried.values() if score is not None), default=0.0)
        for drawn, place in batch.items():
            score = tried[place]
            study.tell(drawn, lowest if score is None else score)


def make_search(
    name: SearchName, space: Space, start: Values, trials: int, together: int, seed: int
) -> Search:
    """Return the search of a name."""
    if name == "grid":
        return grid(space)
    if name == "coordinate":
        return coordinate(space, start)
    return sampled(space, name, trials, together, seed)


def number_of_trials(name: SearchName, space: Space, trials: int) -> int:
    """Return how many points a search tries, at most."""
    points = prod(map(len, space.values()))
    if name == "grid":
        return points
    if name == "coordinate":
        return 1 + sum(len(values) - 1 for values in space.values())
    return min(trials, points)


def _point(space: Space, place: tuple[int, ...]) -> Values:
    return {name: space[name][i] for name, i in zip(space, place, strict=True)}
