"""What scikit-learn expects of an estimator's parameters, without scikit-learn."""

import inspect
import sys
from typing import Any, Self

from distillmatch.errors import LearnerError


class Parameters:
    """An estimator whose constructor only stores its arguments, under their own names."""

    @classmethod
    def parameter_names(cls) -> list[str]:
        """Return the names of the constructor's arguments."""
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name."""
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change some parameters; those that decide how learning goes count from the next task."""
        names = self.parameter_names()
        for name in params:
            if name not in names:
                raise LearnerError(
                    f"unknown parameter '{name}'; the parameters are {', '.join(names)}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        given = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value != defaults[name].default
        ]
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
