"""The transformer: what it learns from a record, and LoRA on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from fl_dp.tasks.models import add_low_rank, build_model
from fl_dp.tasks.models.transformer import Transformer
from fl_dp.tasks.training import evaluate, train_locally

LENGTH, VOCABULARY = 12, 7


def made(num_classes: int = VOCABULARY, **changes: Any) -> Transformer:
    model = build_model(
        "transformer",
        input_shape=(LENGTH,),
        vocabulary_size=VOCABULARY,
        num_classes=num_classes,
        **{"hidden": 16, "seed": 0} | changes,
    )
    assert isinstance(model, Transformer)
    return model


def counted(number: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return windows in which each token is the one before it plus one, and what follows."""
    first = torch.randint(VOCABULARY, (number,), generator=torch.Generator().manual_seed(seed))
    tokens = (first[:, None] + torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, -1]


def every_token(model: Transformer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the losses of all next tokens of each record, `(n, LENGTH)`, without the column."""
    logits = model.head(model.body(input_ids=x).last_hidden_state)
    targets = torch.cat([x[:, 1:], y[:, None]], dim=1)
    return functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


def test_in_training_a_record_s_loss_is_that_of_all_its_tokens() -> None:
    model = made().double()
    x, y = torch.randint(VOCABULARY, (5, LENGTH)), torch.randint(VOCABULARY, (5,))
    expected = every_token(model, x, y).sum(dim=1)
    found = functional.cross_entropy(model(x), y, reduction="none")
    torch.testing.assert_close(found, expected)
    parameters = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(found.sum(), parameters),
        torch.autograd.grad(expected.sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(expected, every_token(model, x, y)[:, -1])  # so it would be seen


def test_the_loss_is_finite_where_its_exponential_is_not() -> None:
    model, (x, y) = made(), counted(3)
    with torch.no_grad():
        model.head.weight.mul_(1e4)
    loss = functional.cross_entropy(model(x), y)
    assert loss > 1000 and loss.isfinite()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(each.isfinite().all() for each in gradients)


def test_no_token_sees_a_later_one() -> None:
    model, (x, _) = made(), counted(2)
    later = x.clone()
    later[:, 6:] = 0
    states = [model.body(input_ids=each).last_hidden_state for each in (x, later)]
    torch.testing.assert_close(states[0][:, :6], states[1][:, :6])
    assert not torch.allclose(states[0][:, 6:], states[1][:, 6:])


def test_it_is_measured_by_the_last_token_alone() -> None:
    model, (x, y) = made().eval(), counted(4)
    assert model(x).shape == (4, VOCABULARY)
    expected = every_token(model, x, y)[:, -1].mean().item()
    assert evaluate(model, x, y)[0] == pytest.approx(expected, rel=1e-5)


def test_low_rank_updates_of_a_frozen_one_learn() -> None:
    model = add_low_rank(made(), rank=4, seed=1, train="both")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    x, y = counted(64)
    loss, _ = evaluate(model, x, y)
    train_locally(model, x, y, learning_rate=0.05, epochs=20, batch_size=16, seed=0)
    assert evaluate(model, *counted(64, seed=1))[0] < 0.7 * loss
    moved = {n for n, each in model.state_dict().items() if not torch.equal(each, before[n])}
    assert moved == {name for name, each in model.named_parameters() if each.requires_grad}
