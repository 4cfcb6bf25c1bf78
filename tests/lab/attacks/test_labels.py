"""Labels from the last layer's update: exact for one record, whatever its scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attacked_images import ONE_STEP, images, network
from torch import nn

from fl_dp.lab.attacks.inversion.analytic import recovered_labels
from fl_dp.lab.attacks.inversion.inversion_attack import RoundObservation
from fl_dp.lab.attacks.inversion.threats import RawUpdate

RAW = RawUpdate(training=ONE_STEP)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_the_label_of_one_record_is_read_off(model: str) -> None:
    victim = network(model)
    for row in range(6):
        records = images([row])
        seen = RAW.observe(victim, [records], seed=0)
        assert recovered_labels(seen).tolist() == records.labels.tolist()


def test_clipping_hides_no_label() -> None:
    records, victim = images([4]), network()
    seen = RAW.observe(victim, [records], seed=0)
    tiny = replace(seen, update=1e-9 * seen.update)
    assert torch.equal(recovered_labels(tiny), recovered_labels(seen))


def test_labels_of_a_batch_are_nearly_all_found() -> None:
    records = images([0, 1, 2, 3, 4])
    seen = RAW.observe(network(), [records], seed=0)
    found, true = recovered_labels(seen).tolist(), records.labels.tolist()
    assert len(found) == 5
    missed = [label for label in set(true) if found.count(label) < true.count(label)]
    assert len(missed) <= 1


def test_a_layer_without_bias_is_read_by_its_rows() -> None:
    records = images([4])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10, bias=False))
    seen = RAW.observe(model, [records], seed=0)
    assert recovered_labels(seen).tolist() == records.labels.tolist()


def test_an_update_of_zero_names_as_many_labels_as_there_are_records() -> None:
    model = network()
    size = sum(each.numel() for each in model.parameters())
    nothing = torch.zeros(size, dtype=torch.float64)
    seen = RoundObservation(model=model, update=nothing, training=ONE_STEP, records=3)
    assert len(recovered_labels(seen)) == 3
