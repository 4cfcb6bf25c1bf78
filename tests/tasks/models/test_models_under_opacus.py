"""Every model trains under DP-SGD: each way gives the sums that its records give alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fl_dp.app.private_training import example_of
from fl_dp.clients.per_record.clipped_gradients import ClippedGradients
from fl_dp.clients.per_record.made_up_records import GRAD_SAMPLE_MODES, gradients_of
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.model_arrays import get_arrays
from fl_dp.tasks.datasets.forms import Form
from fl_dp.tasks.fit import MODELS, ON_TOKENS
from fl_dp.tasks.models import add_low_rank, build_model

LABELS = torch.tensor([0, 2, 1])

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
]


def form_of(name: str) -> Form:
    return Form((6,), 3, 7) if name in ON_TOKENS else Form((1, 8, 8), 3)


def made(name: str, *, rank: int | None = None) -> tuple[nn.Module, Tensor]:
    """Return a model and three records for it, in double precision: errors don't grow in it."""
    form = form_of(name)
    model = build_model(name, hidden=8, seed=0, **form._asdict())
    if rank is not None:
        model = add_low_rank(model, rank=rank, seed=0, train="both")
    generator = torch.Generator().manual_seed(1)
    if form.vocabulary_size is not None:
        return model.double(), torch.randint(0, 7, (3, 6), generator=generator)
    return model.double(), torch.rand(3, 1, 8, 8, generator=generator, dtype=torch.float64)


def gradients_one_by_one(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return each trained parameter's gradients, `(3, *shape)`, from three backward passes."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    rows = [
        torch.autograd.grad(
            functional.cross_entropy(model(x[i : i + 1]), LABELS[i, None]), parameters
        )
        for i in range(3)
    ]
    return [torch.stack(same) for same in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    ("name", "rank"), [*((name, None) for name in MODELS), ("cnn", 2), ("gru", 2)]
)
@pytest.mark.parametrize("mode", GRAD_SAMPLE_MODES)
def test_each_way_gives_the_same_sums_and_a_step_moves_every_array(
    name: str, mode: str, rank: int | None
) -> None:
    model, x = made(name, rank=rank)
    template = ModuleTemplate(model)
    features, labels = example_of(form_of(name))
    example = (features.double() if features.is_floating_point() else features), labels
    loss = LossOfEach(nn.CrossEntropyLoss())
    way = gradients_of(template, loss, mode=mode, example=example)
    single = gradients_one_by_one(model, x)
    norms = torch.stack([each.flatten(1).square().sum(1) for each in single]).sum(0).sqrt()
    norm = 0.5 * float(norms[norms > 0.0].median())
    factors = (norm / norms).clamp(max=1.0)
    total = ClippedGradients(template, way, clipping_norm=norm, at_once=None)
    total.add(x, LABELS)
    for found, each in zip(total.totals, single, strict=True):
        torch.testing.assert_close(
            found, torch.tensordot(factors, each, dims=1), atol=1e-7 * norm, rtol=1e-5
        )
    before = get_arrays(model)
    with torch.no_grad():
        torch._foreach_sub_(list(template.parameters.values()), total.totals)
    template.write_to(model)
    after = get_arrays(model)
    assert list(after) == list(before)
    trained = [key for key in before if key in template.parameters]
    if rank is None:  # else factors at zero keep others at rest
        assert not any(np.array_equal(after[key], before[key]) for key in trained)
