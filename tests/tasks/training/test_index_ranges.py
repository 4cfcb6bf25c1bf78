"""No index out of its range reaches a kernel in the tasks' own training, either."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from asserting_kernels import CLASSES, assert_as_a_gpu_does, reader, texts

from fl_dp.tasks.training import evaluate, train_locally


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_as_a_gpu_does(monkeypatch)


@pytest.mark.parametrize("wrong", [-1, 5, 2**62, -(2**63)])
@pytest.mark.parametrize("what", ["token", "label"])
def test_local_training_and_evaluation_refuse_it(what: str, wrong: int) -> None:
    model = reader()
    before = copy.deepcopy(model.state_dict())
    x, y = texts()
    (x[-1] if what == "token" else y[-1:])[0] = wrong
    with pytest.raises(IndexError, match=f"a {what} is {wrong}"):
        train_locally(model, x, y, learning_rate=0.1, epochs=2, batch_size=100, seed=0)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    with pytest.raises(IndexError, match=f"a {what} is {wrong}"):
        evaluate(model, x, y)


def test_a_label_is_refused_before_the_first_step_wherever_it_stands() -> None:
    model, (x, y) = reader(), texts(60)
    before = copy.deepcopy(model.state_dict())
    for place in range(0, 60, 7):
        labels = y.clone()
        labels[place] = CLASSES
        with pytest.raises(IndexError, match="a label is 3"):
            train_locally(model, x, labels, learning_rate=0.1, epochs=1, batch_size=2, seed=0)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_arrays_of_another_kind_are_refused_alike() -> None:
    x: Any = np.array([[0, 1], [2, 9]], np.int32)
    y: Any = np.array([0, 1], np.int32)
    with pytest.raises(IndexError, match="a token is 9"):
        train_locally(reader(), x, y, learning_rate=0.1, epochs=1, batch_size=1, seed=0)
