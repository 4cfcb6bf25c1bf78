"""Text is recovered from a raw update to the last character, and its order not under noise."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_dp.app.compose import compose_settings
from fl_dp.lab.attacks.inversion.experiment import Recovery
from fl_dp.lab.attacks.inversion.inversion_attack import (
    ClientRecords,
    KnownTraining,
    PixelRange,
    Recovered,
)
from fl_dp.lab.attacks.inversion.recovery_results import summarised
from fl_dp.lab.attacks.inversion.text_pictures import draw_text_recovery, draw_texts
from fl_dp.lab.attacks.inversion.text_recovery import TextRecovery, recovery_of
from fl_dp.lab.attacks.inversion.threats import NoisyUpdate, RawUpdate, ThreatModel
from fl_dp.lab.attacks.inversion.token_spans import TokenSpans
from fl_dp.mechanisms import SecureRandom
from fl_dp.tasks.datasets import Dataset
from fl_dp.tasks.datasets.shakespeare import VOCABULARY
from fl_dp.tasks.models import build_model

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="model=transformer needs fl-dp[transformers]"
)

TEXT = "to be, or not to be: that is"
STEP = KnownTraining(learning_rate=0.1)


def tokens_of(text: str) -> torch.Tensor:
    return torch.tensor([[VOCABULARY.index(each) for each in text]])


def attacked(threat: ThreatModel, text: str = TEXT, texts: int = 1) -> Recovered:
    """Return what the attack makes of a text's update."""
    model = build_model(
        "transformer",
        input_shape=(len(text),),
        num_classes=len(VOCABULARY),
        hidden=64,
        vocabulary_size=len(VOCABULARY),
        seed=0,
    )
    tokens = tokens_of(text).repeat(texts, 1)
    record = ClientRecords(features=tokens, labels=torch.zeros(texts, dtype=torch.int64))
    seen = threat.observe(model, [record], seed=0, rng=SecureRandom(insecure_seed=1))
    [made] = TokenSpans().recover(
        [seen], input_shape=(len(text),), pixels=PixelRange((0.0,), (1.0,)), seed=0
    )
    return made


def noisy(noise_multiplier: float) -> NoisyUpdate:
    return NoisyUpdate(training=STEP, clipping_norm=0.5, noise_multiplier=noise_multiplier)


def test_a_raw_or_clipped_update_gives_the_text_away_to_the_last_character() -> None:
    for norm in (None, 0.5):
        made = attacked(RawUpdate(training=STEP, clipping_norm=norm))
        assert torch.equal(made.features, tokens_of(TEXT))


def test_little_noise_hides_the_order_and_not_which_characters_occur() -> None:
    made = attacked(noisy(1e-3))
    assert made.occurring is not None
    assert set(made.occurring.tolist()) == set(tokens_of(TEXT)[0].tolist())
    assert float((made.features == tokens_of(TEXT)).float().mean()) < 0.5


def test_noise_of_a_single_digit_epsilon_hides_both() -> None:
    made = attacked(noisy(1.0))
    assert made.occurring is not None
    found, true = set(made.occurring.tolist()), set(tokens_of(TEXT)[0].tolist())
    assert len(found & true) < 0.5 * len(found | true)


def plays() -> Dataset:
    """Return forty windows of made-up text."""
    rng = np.random.default_rng(0)
    letters = tokens_of("aeionrst ")[0].numpy().astype(np.uint8)
    windows = rng.choice(letters, (40, 12))
    labels = windows[:, 0].astype(np.int64)
    return Dataset(
        name="plays",
        train_x=windows,
        train_y=labels,
        test_x=windows,
        test_y=labels,
        num_classes=len(VOCABULARY),
        vocabulary_size=len(VOCABULARY),
    )


def experiment(*overrides: str) -> Recovery:
    small = (
        *("experiment=text_recovery", "model.hidden=32", "recovery.images=2", "recovery.cohort=3"),
        *("recovery.seeds=1", "recovery.noise_multipliers=[1]", "privacy.insecure_seed=1"),
        *("recovery.threats=[raw,released,client_noise]",),
    )
    return recovery_of(plays(), compose_settings([*small, *overrides]))


def test_an_experiment_tells_shares_beside_a_guess_and_draws_them(tmp_path: Path) -> None:
    asked = experiment()
    assert isinstance(asked, TextRecovery)
    found = {(cell.threat, cell.noise_multiplier): asked.run(cell) for cell in asked.cells}
    raw = found["raw", 0.0].rows[0]
    assert raw["recovered"] == raw["true"]
    summaries = summarised([row for each in found.values() for row in each.rows])
    assert [each.fails for each in summaries] == [False, True, True]
    assert 0.0 < summaries[0].means["guess_in_place"] < 0.5
    pytest.importorskip("matplotlib", reason="pictures need fl-dp[viewer]")
    assert draw_text_recovery(summaries, tmp_path / "recovery.png", title="plays")
    assert draw_texts(found, tmp_path / "images.png", title="plays")
    assert (tmp_path / "images.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    "change", ["recovery.attacks=[dlg]", "recovery.resistance=true", "model=gru"]
)
def test_what_is_not_on_text_is_refused(change: str) -> None:
    with pytest.raises(ValueError):
        experiment(change)
