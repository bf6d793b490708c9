"""What scikit-learn expects of an estimator's parameters, without scikit-learn."""

import sys
from dataclasses import dataclass, fields
from typing import Any, Self

from distillmatch.errors import LearnerError


@dataclass(eq=False, repr=False)
class Parameters:
    """An estimator whose parameters are its fields: its constructor only stores them."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change some parameters; those that decide how learning goes count from the next task."""
        names = [field.name for field in fields(self)]
        for name in params:
            if name not in names:
                raise LearnerError(
                    f"unknown parameter '{name}'; the parameters are {', '.join(names)}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        values = ((field, getattr(self, field.name)) for field in fields(self))
        given = [f"{field.name}={value!r}" for field, value in values if value != field.default]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn, where that is installed, what kind of estimator this is."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags  # noqa: PLC0415

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )


def not_fitted(sentence: str) -> Exception:
    """Return the error for a learner that has learned nothing: scikit-learn's own where in use."""
    exceptions = sys.modules.get("sklearn.exceptions")
    if exceptions is None:
        return NotFittedError(sentence)
    kinds = (NotFittedError, exceptions.NotFittedError)
    error: Exception = type("NotFittedError", kinds, {})(sentence)
    return error


class NotFittedError(LearnerError, AttributeError):
    """The learner was asked before it was taught."""
