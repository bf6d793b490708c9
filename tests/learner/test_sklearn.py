"""The learner under scikit-learn's own checks of estimators.

Those checks draw tables of numbers, and a learner wants images. So they are run on a learner that
is shown each row of such a table as a little picture, and on one that takes the rows as features
of a network; none is left out.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from distillmatch import ContinualLearner

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

SIDE = 8


class RowsAsImages(ContinualLearner):
    """A learner that draws each row of a table as a picture; scikit-learn checks the table."""

    def fit(self, X: Any, y: Any = None, unlabeled: Any = None, *, verbose: bool = False) -> Self:
        table, y = validate_data(self, X, y, dtype=np.float64)
        return super().fit(self.shown(table), y)

    def partial_fit(self, X: Any, y: Any = None, *others: Any, **named: Any) -> Self:
        if np.ndim(X) == 2:
            X, y = validate_data(
                self, X, y, dtype=np.float64, reset=not self.__sklearn_is_fitted__()
            )
            X = self.shown(X)
        return super().partial_fit(X, y, *others, **named)

    def predict(self, X: Any, reject: bool = False, accept: float | None = None) -> NDArray[Any]:
        check_is_fitted(self)
        return super().predict(self.shown(validate_data(self, X, reset=False, dtype=np.float64)))

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self)
        return super().predict_proba(
            self.shown(validate_data(self, X, reset=False, dtype=np.float64))
        )

    def score(self, X: Any, y: Any = None) -> float:
        return super().score(self.shown(validate_data(self, X, reset=False, dtype=np.float64)), y)

    def shown(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        return table if self.network == "identity" else drawn(table)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


def drawn(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draw each row as bands of color, three numbers a band, which survive being mirrored."""
    count, length = table.shape
    bands = -(-length // 3)
    levels = np.full((count, 3 * bands), 0.5)
    levels[:, :length] = 1 / (1 + np.exp(-table))
    rows = np.arange(SIDE) * bands // SIDE
    return np.repeat(levels.reshape(count, bands, 3)[:, rows, None], SIDE, axis=2)


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        RowsAsImages("base", "wrn-10-1", image_size=SIDE, epochs=1, batch=16),
        RowsAsImages(network="identity"),
    ]
)
def test_passes_the_checks_of_scikit_learn(
    estimator: RowsAsImages, check: Callable[[RowsAsImages], None]
) -> None:
    check(estimator)


def test_clones_have_the_parameters_and_nothing_that_was_learned() -> None:
    options = {"pseudo_labels": False}
    learner = ContinualLearner("dm", "wrn-10-1", coreset=7, options=options)
    copy = clone(learner)
    assert copy.get_params() == learner.get_params()
    assert is_classifier(learner)
    assert repr(copy) == (
        "ContinualLearner(method='dm', network='wrn-10-1', coreset=7, "
        "options={'pseudo_labels': False})"
    )
    with pytest.raises(ValueError, match="unknown parameter 'epoch'"):
        copy.set_params(epoch=3)


@pytest.mark.parametrize(
    "ask",
    [
        lambda learner: learner.predict([]),
        lambda learner: learner.predict_proba([]),
        lambda learner: learner.score([], []),
        lambda learner: learner.explain(),
        lambda learner: learner.save("nowhere"),
        lambda learner: learner.history_,
    ],
)
def test_an_untaught_learner_says_so(ask: Callable[[ContinualLearner], Any]) -> None:
    learner = ContinualLearner()
    with pytest.raises(NotFittedError, match="has learned nothing yet"):
        ask(learner)
    assert not hasattr(learner, "classes_")
