"""No index out of its range reaches a kernel in training and evaluation of tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from asserting_kernels import CLASSES, TOKENS, assert_as_a_gpu_does, reader, texts

from fl_dp.tasks.training import evaluate, train_locally


@pytest.mark.parametrize("wrong", [-1, 5, 2**62, -(2**63)])
@pytest.mark.parametrize("what", ["token", "label"])
def test_evaluation_refuses_it(what: str, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_as_a_gpu_does(monkeypatch)
    x, y = texts()
    (x[-1] if what == "token" else y[-1:])[0] = wrong
    with pytest.raises(IndexError, match=f"a {what} is {wrong}"):
        evaluate(reader(), x, y)


@pytest.mark.parametrize("wrong", [-1, 5, 2**62, -(2**63)])
@pytest.mark.parametrize("what", ["token", "label"])
def test_local_training_takes_the_nearest(what: str, wrong: int) -> None:
    """A CPU's kernel would raise."""
    trained = []
    for given in (wrong, 0 if wrong < 0 else TOKENS - 1 if what == "token" else CLASSES - 1):
        model, (x, y) = reader(), texts(60)
        (x[-1] if what == "token" else y[-1:])[0] = given
        train_locally(model, x, y, learning_rate=0.1, epochs=2, batch_size=7, seed=0)
        trained.append(model.state_dict())
    assert all(torch.equal(each, trained[1][name]) for name, each in trained[0].items())
    assert not torch.equal(trained[0]["2.weight"], reader().state_dict()["2.weight"])


def test_arrays_of_another_kind_are_read_alike() -> None:
    x: Any = np.array([[0, 1], [2, 9]], np.int32)
    y: Any = np.array([0, 1], np.int32)
    train_locally(reader(), x, y, learning_rate=0.1, epochs=1, batch_size=1, seed=0)
    with pytest.raises(IndexError, match="a token is 9"):
        evaluate(reader(), x, y)
