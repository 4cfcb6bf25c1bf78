"""Each attack recovers what nothing protects, and nothing where it should not."""

from __future__ import annotations

import pytest
import torch
from attacked_images import (
    DIGITS,
    ONE_STEP,
    attacked,
    decibels,
    images,
    network,
    no_better_than_the_mean_image,
)
from torch import nn

from fl_dp.lab.attacks.inversion.analytic import AnalyticInversion
from fl_dp.lab.attacks.inversion.experiment import changed
from fl_dp.lab.attacks.inversion.inversion_attack import Attack, KnownTraining
from fl_dp.lab.attacks.inversion.matching import DeepLeakage, InvertingGradients
from fl_dp.lab.attacks.inversion.threats import NoisyUpdate, RawUpdate, ReleasedModel
from fl_dp.mechanisms import SecureRandom

RAW = RawUpdate(training=ONE_STEP)
CLIPPED = RawUpdate(training=ONE_STEP, clipping_norm=0.05)
ATTACKS = {
    "analytic": AnalyticInversion(),
    "dlg": DeepLeakage(steps=100, restarts=3),
    # One start alone can end in a local minimum, and in which depends on the machine.
    "idlg": DeepLeakage(knows_labels=True, steps=150, restarts=2),
    "inverting_gradients": InvertingGradients(steps=200, restarts=1),
}
each_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())


def rng() -> SecureRandom:
    return SecureRandom(insecure_seed=1)


# Where nothing protects.


@pytest.mark.parametrize("model", ["mlp", "logistic"])
@pytest.mark.parametrize("threat", [RAW, CLIPPED], ids=["raw", "clipped"])
def test_the_analytic_inversion_reproduces_an_image_to_1e_5(threat: RawUpdate, model: str) -> None:
    truth = images([7])
    made = attacked(AnalyticInversion(), threat.observe(network(model), [truth], seed=0))
    assert float((made.features - truth.features).abs().max()) < 1e-5
    assert made.labels.tolist() == truth.labels.tolist()


@each_attack
def test_an_image_is_recovered_and_clipping_alone_protects_nothing(attack: Attack) -> None:
    truth = images([7])
    made = attacked(attack, CLIPPED.observe(network(), [truth], seed=0))
    assert decibels(made, truth)[0] >= 25.0
    assert made.labels.tolist() == truth.labels.tolist()


def test_several_known_local_steps_are_unrolled() -> None:
    truth, training = images([7]), KnownTraining(learning_rate=0.1, epochs=3)
    seen = RawUpdate(training=training).observe(network(), [truth], seed=0)
    made = attacked(InvertingGradients(steps=150, restarts=1), seen)
    assert decibels(made, truth)[0] >= 25.0


# Where something does.


@each_attack
def test_noise_at_the_client_stops_the_recovery(attack: Attack) -> None:
    truth = images([7])
    threat = NoisyUpdate(training=ONE_STEP, clipping_norm=0.1, noise_multiplier=1.0)
    made = attacked(attack, threat.observe(network(), [truth], seed=0, rng=rng()))
    assert no_better_than_the_mean_image(made, truth)


@pytest.mark.parametrize(
    ("name", "knows_others"), [("analytic", True), ("inverting_gradients", False)]
)
def test_a_released_model_gives_no_more_than_the_prior(name: str, knows_others: bool) -> None:
    clients = [images([row]) for row in range(7, 11)]
    threat = ReleasedModel(
        training=ONE_STEP, clipping_norm=0.1, noise_multiplier=1.0, knows_others=knows_others
    )
    seen = threat.observe(network(), clients, seed=0, rng=rng())
    assert no_better_than_the_mean_image(attacked(ATTACKS[name], seen), clients[0])


def test_noise_that_stops_the_search_can_have_an_epsilon_that_says_nothing() -> None:
    truth = images([7])
    threat = NoisyUpdate(training=ONE_STEP, clipping_norm=0.1, noise_multiplier=0.05)
    seen = threat.observe(network(), [truth], seed=0, rng=rng())
    assert no_better_than_the_mean_image(
        attacked(InvertingGradients(steps=200, restarts=1), seen), truth
    )
    assert threat.epsilon(1e-5) > 100.0


# What resists without any noise.


def recovered_by_search(model: nn.Module, rows: list[int], training: KnownTraining) -> float:
    truth = images(rows)
    seen = RawUpdate(training=training).observe(model, [truth], seed=0)
    made = attacked(InvertingGradients(steps=150, restarts=1), seen)
    pairs = [decibels(made, images([row] * len(rows))) for row in rows]
    return sum(max(each) for each in pairs) / len(rows)


def test_a_large_batch_resists() -> None:
    alone = recovered_by_search(network(), [7], ONE_STEP)
    together = recovered_by_search(network(), list(range(32)), ONE_STEP)
    assert alone > 25.0 > together + 5.0


def test_dropout_that_the_adversary_does_not_see_resists() -> None:
    model = network()
    assert isinstance(model, nn.Sequential)
    assert recovered_by_search(changed(model, "dropout"), [7], ONE_STEP) < 25.0


# The parts.


def test_observations_of_several_clients_are_attacked_as_if_alone() -> None:
    model, attack = network(), InvertingGradients(steps=20, restarts=1)
    seen = [RAW.observe(model, [images([row])], seed=0) for row in (3, 7)]
    both = attack.recover(seen, input_shape=(1, 8, 8), pixels=DIGITS, seed=0)
    [first] = attack.recover(seen[:1], input_shape=(1, 8, 8), pixels=DIGITS, seed=0)
    assert torch.allclose(both[0].features, first.features, atol=1e-3)


def test_an_attack_leaves_the_model_as_it_was() -> None:
    model = network("cnn")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    seen = RAW.observe(model, [images([3])], seed=0)
    attacked(InvertingGradients(steps=2, restarts=1), seen)
    assert model.training
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name])


def test_the_analytic_inversion_needs_a_linear_layer_first() -> None:
    seen = RAW.observe(network("cnn"), [images([3])], seed=0)
    with pytest.raises(ValueError, match="model=mlp or model=logistic"):
        attacked(AnalyticInversion(), seen)
