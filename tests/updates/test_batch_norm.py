"""A released BatchNorm has no negative variance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fl_dp.updates.batch_norm import with_sound_variances


def test_a_negative_running_variance_becomes_zero_and_nothing_else_changes() -> None:
    variance = np.array([1.5, -0.25, 0.0], dtype=np.float32)
    model = ArrayRecord(
        {
            "bn.running_mean": Array(-variance),
            "bn.running_var": Array(variance),
            "bn.num_batches_tracked": Array(np.array(-3)),
            "running_variety": Array(variance),
        }
    )
    sound = with_sound_variances(model)
    assert list(sound) == list(model)
    assert sound["bn.running_var"].numpy().tolist() == [1.5, 0.0, 0.0]
    assert sound["bn.running_var"].dtype == "float32"
    for name in ("bn.running_mean", "bn.num_batches_tracked", "running_variety"):
        assert sound[name].data == model[name].data
    assert model["bn.running_var"].numpy().tolist() == [1.5, -0.25, 0.0]


def test_a_model_without_a_negative_variance_is_returned_itself() -> None:
    model = ArrayRecord({"bn.running_var": Array(np.ones(3)), "w": Array(-np.ones(2))})
    assert with_sound_variances(model) is model


@pytest.mark.parametrize("noised", [-0.5, -1e30])
def test_pytorch_computes_with_it_again(noised: float) -> None:
    norm = torch.nn.BatchNorm1d(1).eval()
    state = {name: Array(value.numpy()) for name, value in norm.state_dict().items()}
    state["running_var"] = Array(np.array([noised], dtype=np.float32))
    norm.load_state_dict(with_sound_variances(ArrayRecord(state)).to_torch_state_dict())
    assert torch.isfinite(norm(torch.ones(2, 1))).all()
