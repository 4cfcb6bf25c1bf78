"""Metrics of a model on public rows, beside its loss: one table, mostly scikit-learn's.

    >>> public_metrics(["auc", "f1"], labels=np.array([0, 1]), probabilities=np.eye(2))
    {'auc': 1.0, 'f1': 1.0}

Privacy: the rows count as public, and the model is released, so metrics cost nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # who reads names and units, as the dashboard does, needs no numpy
    import numpy as np
    from numpy.typing import NDArray

Predictions: TypeAlias = "NDArray[np.float64]"
Labels: TypeAlias = "NDArray[Any]"
Measured: TypeAlias = float | list[list[int]] | None
"""A number, a matrix of counts, or None where the metric is not defined."""

MOST_CLASSES_OF_A_MATRIX = 32
_CALIBRATION_BINS = 15


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        function: Takes the true labels, `(n,)`, and all classes' probabilities, `(n, classes)`;
            for labels that are numbers, the predictions, `(n,)`.
        larger_is_better: None for a metric without an order.
        unit: Phrase that describes its number.
        needs_variety: Whether it is undefined unless every class occurs among the true labels, or
            two numbers differ.
        of_numbers: Whether it is for labels that are numbers, not classes.
    """

    title: str
    function: Callable[[Labels, Predictions], float | list[list[int]]]
    larger_is_better: bool | None
    unit: str
    needs_variety: bool = False
    of_numbers: bool = False


def _auc(labels: Labels, probabilities: Predictions) -> float:
    from sklearn.metrics import roc_auc_score

    if probabilities.shape[1] == 2:
        return float(roc_auc_score(labels, probabilities[:, 1]))
    return float(roc_auc_score(labels, probabilities, multi_class="ovr", average="macro"))


def _balanced_accuracy(labels: Labels, probabilities: Predictions) -> float:
    from sklearn.metrics import balanced_accuracy_score

    return float(balanced_accuracy_score(labels, probabilities.argmax(axis=1)))


def _f1(labels: Labels, probabilities: Predictions) -> float:
    from sklearn.metrics import f1_score

    average = "binary" if probabilities.shape[1] == 2 else "macro"
    predicted = probabilities.argmax(axis=1)
    return float(f1_score(labels, predicted, average=average, zero_division=0.0))


def _log_loss(labels: Labels, probabilities: Predictions) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(labels, probabilities, labels=range(probabilities.shape[1])))


def _largest_answer(labels: Labels, probabilities: Predictions) -> float:
    import numpy as np

    answers = np.bincount(probabilities.argmax(axis=1))
    return float(answers.max() / len(labels))


def _perplexity(labels: Labels, probabilities: Predictions) -> float:
    return math.exp(_log_loss(labels, probabilities))


def _calibration_error(labels: Labels, probabilities: Predictions) -> float:
    """The expected calibration error of the most probable class, by bins of equal width.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", equation 3. scikit-learn has only
    the curve, without the bins' weights.
    """
    import numpy as np

    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0.0, 1.0, _CALIBRATION_BINS + 1)
    bins = np.digitize(confidence, edges[1:-1], right=True)  # (low, high], as in the paper
    gaps = np.bincount(bins, weights=correct - confidence)
    return float(np.abs(gaps).sum() / len(labels))


def _r2(labels: Labels, predictions: Predictions) -> float:
    errors = float(((labels - predictions) ** 2).sum())
    return 1.0 - errors / float(((labels - labels.mean()) ** 2).sum())


def _mean_absolute_error(labels: Labels, predictions: Predictions) -> float:
    return float(abs(labels - predictions).mean())


def _root_mean_squared_error(labels: Labels, predictions: Predictions) -> float:
    return math.sqrt(float(((labels - predictions) ** 2).mean()))


def _confusion_matrix(labels: Labels, probabilities: Predictions) -> list[list[int]]:
    from sklearn.metrics import confusion_matrix

    classes = range(probabilities.shape[1])
    counts: NDArray[np.int64] = confusion_matrix(
        labels, probabilities.argmax(axis=1), labels=classes
    )
    rows: list[list[int]] = counts.tolist()
    return rows


METRICS: dict[str, Metric] = {
    "balanced_accuracy": Metric(
        title="balanced accuracy",
        function=_balanced_accuracy,
        larger_is_better=True,
        unit="mean recall of the classes, in [0, 1]",
    ),
    "auc": Metric(
        title="AUC",
        function=_auc,
        larger_is_better=True,
        unit="area under the ROC curve, in [0, 1]; of several classes, the mean of each against "
        "the rest",
        needs_variety=True,
    ),
    "largest_answer": Metric(
        title="largest answer",
        function=_largest_answer,
        larger_is_better=None,
        unit="share of the rows that get the commonest of the model's answers; 1: a constant one",
    ),
    "f1": Metric(
        title="F1",
        function=_f1,
        larger_is_better=True,
        unit="F1 score of the second of two classes, in [0, 1]; of several, their mean",
    ),
    "log_loss": Metric(
        title="log loss",
        function=_log_loss,
        larger_is_better=False,
        unit="mean cross-entropy, in nats",
    ),
    "perplexity": Metric(
        title="perplexity",
        function=_perplexity,
        larger_is_better=False,
        unit="exponential of the mean cross-entropy, at least 1",
    ),
    "calibration_error": Metric(
        title="calibration error",
        function=_calibration_error,
        larger_is_better=False,
        unit=f"mean gap between confidence and accuracy over {_CALIBRATION_BINS} bins, in [0, 1]",
    ),
    "confusion_matrix": Metric(
        title="confusion matrix",
        function=_confusion_matrix,
        larger_is_better=None,
        unit="rows of each true class (down) by predicted class (across)",
    ),
    "r2": Metric(
        title="R2",
        function=_r2,
        larger_is_better=True,
        unit="share of the label's variance that is explained, at most 1; 0 is the mean",
        needs_variety=True,
        of_numbers=True,
    ),
    "mae": Metric(
        title="mean absolute error",
        function=_mean_absolute_error,
        larger_is_better=False,
        unit="mean absolute error, in the unit of the label",
        of_numbers=True,
    ),
    "rmse": Metric(
        title="root mean squared error",
        function=_root_mean_squared_error,
        larger_is_better=False,
        unit="root of the mean squared error, in the unit of the label",
        of_numbers=True,
    ),
}
"""Metrics by their names, which are the values of `metrics.public`."""

ONE_ANSWER = "{value} (one answer)"
"""How a score is shown whose model gives all rows the same answer."""

NUMBERS = tuple(name for name in METRICS if name != "confusion_matrix")
"""Metrics whose value is one number."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The number that judges a model on public rows; larger is better, 1 is perfect.

    Attributes:
        name: `accuracy` for classes, `auc` where one is publicly known to be most of all, `r2` for
            numbers; a line's key is `test_` and this name. See `Dataset.measure`.
        value: None where it is undefined or unknown.
        auc: AUC, where it was measured with an accuracy.
        is_constant: Whether the model answers all rows with one class.
        measured_on: The public rows, `test` or `validation`.
    """

    name: str = "accuracy"
    value: float | None = None
    auc: float | None = None
    is_constant: bool = False
    measured_on: str = "test"

    @classmethod
    def of(
        cls,
        accuracy: float | None,
        metrics: Mapping[str, float | None],
        measured_on: str = "test",
    ) -> Score:
        """The score from a model's accuracy and other metrics."""
        is_constant = metrics.get("largest_answer") == 1.0
        for name in ("r2", "auc"):
            if accuracy is None and name in metrics:
                return cls(
                    name=name,
                    value=metrics[name],
                    is_constant=is_constant,
                    measured_on=measured_on,
                )
        return cls(
            value=accuracy,
            auc=metrics.get("auc"),
            is_constant=is_constant,
            measured_on=measured_on,
        )

    @classmethod
    def in_line(cls, line: Mapping[str, Any]) -> Score:
        """The score in a line of `metrics.jsonl`."""
        metrics = {name: line[f"test_{name}"] for name in METRICS if f"test_{name}" in line}
        accuracy, measured_on = line.get("test_accuracy"), line.get("measured_on", "test")
        if "test_accuracy" in line and accuracy is None:  # a round that was not measured
            return cls(measured_on=measured_on)
        return cls.of(accuracy, metrics, measured_on)

    @property
    def title(self) -> str:
        """Its name in words, with the rows that it was measured on."""
        name = METRICS[self.name].title if self.name in METRICS else self.name
        return f"{self.measured_on} {name}"

    @property
    def rank(self) -> float:
        """Its value for comparisons; a model without one comes last."""
        if self.value is None or math.isnan(self.value):
            return -math.inf
        return self.value

    @property
    def marked(self) -> str:
        """The value, and whether it is of a constant answer."""
        return self.mark(str(self))

    @property
    def with_auc(self) -> str:
        """As `marked`, and AUC where it is known."""
        return self.marked if self.auc is None else f"{self.marked}, AUC {self.auc:.3f}"

    def mark(self, value: str, form: str = ONE_ANSWER) -> str:
        """A text of the value, in `form` where it is of a constant answer."""
        return form.format(value=value) if self.is_constant else value

    def __str__(self) -> str:
        """The value with three decimals, `-` without one."""
        return "-" if self.value is None else f"{self.value:.3f}"


def default_metrics(*, num_classes: int, vocabulary_size: int | None = None) -> list[str]:
    """The usual metrics of a kind of data, besides loss and accuracy.

    None for several classes: scikit-learn's import would delay each start by half a second.
    """
    if num_classes == 1:
        return ["mae", "rmse"]
    if vocabulary_size is not None:
        return ["perplexity"]
    return ["balanced_accuracy", "auc", "largest_answer"] if num_classes == 2 else []


def require_metrics(names: Sequence[str], *, num_classes: int) -> None:
    """Check that these metrics can be measured; `num_classes` is 1 where labels are numbers.

    Raises:
        ModuleNotFoundError: If scikit-learn is missing.
        ValueError: If one is for classes and the labels are numbers, or the reverse, or a
            confusion matrix would be too large for a line of `metrics.jsonl`.
    """
    of_numbers = num_classes == 1
    fitting = [name for name, metric in METRICS.items() if metric.of_numbers is of_numbers]
    others = [name for name in names if name not in fitting]
    if others:
        kind = "numbers" if of_numbers else "classes"
        raise ValueError(
            f"metrics.public has {', '.join(others)}, and the labels are {kind}: write of "
            f"{', '.join(fitting)}"
        )
    if "confusion_matrix" in names and num_classes > MOST_CLASSES_OF_A_MATRIX:
        raise ValueError(
            f"a confusion matrix is of at most {MOST_CLASSES_OF_A_MATRIX} classes, and there are "
            f"{num_classes}: leave confusion_matrix out of metrics.public"
        )
    if names and not of_numbers and find_spec("sklearn") is None:
        raise ModuleNotFoundError(
            "metrics.public needs scikit-learn: pip install 'fl-dp[app]', or write "
            "metrics.public=[]"
        )


def public_metrics(
    names: Sequence[str], *, labels: Labels, probabilities: Predictions
) -> dict[str, Measured]:
    """Measure predictions on public rows.

    Args:
        names: Names in `METRICS`.
        labels: True classes, int64 `(n,)`; or numbers, float64, in their own unit.
        probabilities: Probabilities of the classes, float64 `(n, num_classes)`; rows add up to 1.
            For numbers the predictions, `(n,)`, in the labels' unit.

    Returns:
        Each metric by name. None where it is undefined: without rows, if a prediction is not
        finite (the model has diverged), AUC unless every class occurs, and R2 unless two labels
        differ.
    """
    import numpy as np

    if not len(labels) or not np.isfinite(probabilities).all():
        return dict.fromkeys(names)
    least = 2 if probabilities.ndim == 1 else probabilities.shape[1]
    is_various = len(np.unique(labels)) >= least
    values: dict[str, Measured] = {}
    for name in names:
        metric = METRICS[name]
        if metric.needs_variety and not is_various:
            values[name] = None
            continue
        with warnings.catch_warnings():
            # About predicted classes that do not occur: no reader of a round needs it again.
            warnings.simplefilter("ignore")
            values[name] = metric.function(labels, probabilities)
    return values
