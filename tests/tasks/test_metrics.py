"""Metrics on public rows are scikit-learn's, and have one outcome where they are not defined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as oracle
from numpy.typing import NDArray

from fl_dp.tasks import public_scores
from fl_dp.tasks.public_scores import (
    METRICS,
    Score,
    default_metrics,
    public_metrics,
    require_metrics,
)

NAMES = [name for name, metric in METRICS.items() if not metric.of_numbers]
OF_NUMBERS = [name for name, metric in METRICS.items() if metric.of_numbers]


def predictions(
    num_rows: int, num_classes: int, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels in which every class occurs, and probabilities that know a little of them."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate(
        [np.arange(num_classes), rng.integers(num_classes, size=num_rows - num_classes)]
    )
    logits = rng.normal(size=(num_rows, num_classes)) + np.eye(num_classes)[labels]
    return labels, softmax(logits)


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("num_classes", [2, 5])
def test_classes_are_measured_as_scikit_learn_does(num_classes: int) -> None:
    labels, probabilities = predictions(300, num_classes)
    found = public_metrics(NAMES, labels=labels, probabilities=probabilities)
    predicted = probabilities.argmax(axis=1)
    one_against_the_rest = [
        oracle.roc_auc_score(labels == number, probabilities[:, number])
        for number in range(num_classes)
    ]
    assert found["auc"] == pytest.approx(np.mean(one_against_the_rest), rel=1e-12)
    average = "binary" if num_classes == 2 else "macro"
    assert found["f1"] == oracle.f1_score(labels, predicted, average=average)
    assert found["balanced_accuracy"] == oracle.balanced_accuracy_score(labels, predicted)
    assert found["log_loss"] == pytest.approx(oracle.log_loss(labels, probabilities), rel=1e-12)
    assert found["perplexity"] == pytest.approx(np.exp(oracle.log_loss(labels, probabilities)))
    assert found["confusion_matrix"] == oracle.confusion_matrix(labels, predicted).tolist()


def test_one_class_alone_leaves_out_auc_and_nothing_else() -> None:
    probabilities = predictions(20, 2)[1]
    found = public_metrics(NAMES, labels=np.zeros(20, np.int64), probabilities=probabilities)
    assert found["auc"] is None
    assert all(found[name] is not None for name in NAMES if name != "auc")
    matrix = found["confusion_matrix"]
    assert isinstance(matrix, list) and sum(matrix[0]) == 20 and matrix[1] == [0, 0]


def test_a_model_that_diverged_has_no_metric() -> None:
    labels, probabilities = predictions(30, 3)
    probabilities[7] = np.nan
    assert public_metrics(NAMES, labels=labels, probabilities=probabilities) == dict.fromkeys(NAMES)


def test_numbers_are_measured_as_scikit_learn_does() -> None:
    rng = np.random.default_rng(5)
    labels = rng.normal(100.0, 20.0, size=80)
    predictions = labels + rng.normal(0.0, 9.0, size=80)
    found = public_metrics(OF_NUMBERS, labels=labels, probabilities=predictions)
    assert found == {
        "r2": pytest.approx(oracle.r2_score(labels, predictions), rel=1e-12),
        "mae": pytest.approx(oracle.mean_absolute_error(labels, predictions), rel=1e-12),
        "rmse": pytest.approx(oracle.root_mean_squared_error(labels, predictions), rel=1e-12),
    }


def test_r2_needs_two_labels_that_differ_and_the_others_do_not() -> None:
    target = np.full(3, 7.0)
    found = public_metrics(OF_NUMBERS, labels=target, probabilities=target + 3.0)
    assert found == {"r2": None, "mae": 3.0, "rmse": 3.0}


def test_tied_predictions_explain_nothing_and_the_mean_explains_0() -> None:
    labels = np.array([1.0, 2.0, 3.0, 6.0])
    found = public_metrics(["r2"], labels=labels, probabilities=np.full(4, labels.mean()))
    assert found == {"r2": 0.0}
    perfect = public_metrics(OF_NUMBERS, labels=labels, probabilities=labels)
    assert perfect == {"r2": 1.0, "mae": 0.0, "rmse": 0.0}


def test_no_rows_have_no_metric() -> None:
    found = public_metrics(OF_NUMBERS, labels=np.zeros(0), probabilities=np.zeros(0))
    assert found == dict.fromkeys(OF_NUMBERS)


@pytest.mark.parametrize(
    ("line", "name", "value", "text", "rank"),
    [
        ({"test_accuracy": 0.9, "test_auc": 0.8}, "accuracy", 0.9, "0.900", 0.9),
        ({"test_r2": -0.25, "test_mae": 3.0}, "r2", -0.25, "-0.250", -0.25),
        ({"test_r2": None}, "r2", None, "-", -np.inf),
        ({"test_r2": np.nan}, "r2", np.nan, "nan", -np.inf),
        ({}, "accuracy", None, "-", -np.inf),
    ],
)
def test_a_line_says_what_its_model_is_judged_by(
    line: dict[str, float], name: str, value: float | None, text: str, rank: float
) -> None:
    score = Score.in_line(line)
    assert (score.name, score.value, str(score), score.rank) == (name, value, text, rank)


def test_a_constant_answer_is_called_so_and_a_rare_class_is_judged_by_auc() -> None:
    labels = np.array([0] * 9 + [1])
    probabilities = np.column_stack([np.linspace(0.9, 0.6, 10), np.linspace(0.1, 0.4, 10)])
    names = default_metrics(num_classes=2)
    metrics = public_metrics(names, labels=labels, probabilities=probabilities)
    assert (metrics["largest_answer"], metrics["auc"]) == (1.0, 1.0)
    line = {f"test_{name}": value for name, value in metrics.items()}
    assert Score.in_line(line | {"test_accuracy": 0.9}).with_auc == "0.900 (one answer), AUC 1.000"
    judged = Score.in_line(line)
    assert (judged.title, judged.with_auc) == ("test AUC", "1.000 (one answer)")
    probabilities[0] = [0.2, 0.8]
    metrics = public_metrics(names, labels=labels, probabilities=probabilities)
    assert metrics["largest_answer"] == 0.9
    assert Score.in_line(line | {"test_largest_answer": 0.9}).with_auc == "1.000"


def test_calibration_error_of_known_gaps() -> None:
    """At confidence .8 three of four are right, at .6 one of two: (4 x .05 + 2 x .1) / 6."""
    confidence = np.array([0.8] * 4 + [0.6] * 2)
    probabilities = np.column_stack([confidence, 1.0 - confidence])
    labels = np.array([0, 0, 0, 1, 0, 1])
    found = public_metrics(["calibration_error"], labels=labels, probabilities=probabilities)
    assert found == {"calibration_error": pytest.approx(0.4 / 6)}


def test_defaults_go_by_the_kind_of_data() -> None:
    assert default_metrics(num_classes=2) == ["balanced_accuracy", "auc", "largest_answer"]
    assert default_metrics(num_classes=10) == []
    assert default_metrics(num_classes=80, vocabulary_size=80) == ["perplexity"]
    assert default_metrics(num_classes=1) == ["mae", "rmse"]


def test_a_matrix_of_too_many_classes_is_refused() -> None:
    require_metrics(["confusion_matrix"], num_classes=32)
    with pytest.raises(ValueError):
        require_metrics(["confusion_matrix"], num_classes=33)


def test_missing_scikit_learn_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(public_scores, "find_spec", lambda _: None)
    require_metrics([], num_classes=2)
    require_metrics(["r2", "mae"], num_classes=1)  # which it does not compute
    with pytest.raises(ModuleNotFoundError):
        require_metrics(["auc"], num_classes=2)


def test_the_guide_lists_every_metric_with_its_unit() -> None:
    page = (Path(__file__).parents[2] / "docs/report.md").read_text(encoding="utf-8")
    better = {True: "larger", False: "smaller", None: "-"}
    for name, metric in METRICS.items():
        assert f"| `{name}` | {metric.unit} | {better[metric.larger_is_better]} |" in page
