"""An experiment of cells: each is done once, kept whole, and summed up beside the prior."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_dp.app.compose import compose_settings
from fl_dp.app.settings.recovery import THREATS, WITH_NOISE
from fl_dp.lab.attacks.inversion.experiment import Recovery, RecoveryCell
from fl_dp.lab.attacks.inversion.recovery_pictures import (
    draw_images,
    draw_recovery,
    draw_resistance,
)
from fl_dp.lab.attacks.inversion.recovery_results import (
    Summary,
    fails_from,
    load_result,
    save_result,
    strongest,
    summarised,
)
from fl_dp.lab.attacks.inversion.registry import WORDS
from fl_dp.tasks.datasets import load_dataset


def recovery(*overrides: str) -> Recovery:
    """Return a small experiment, with more overrides."""
    small = (
        *("experiment=data_recovery", "model=mlp", "model.hidden=16", "client.learning_rate=0.1"),
        *("client.epochs=2", "clipping.norm=0.1", "privacy.insecure_seed=1", "recovery.images=2"),
        *("recovery.attacks=[analytic]", "recovery.noise_multipliers=[1e-6,1]"),
        *("recovery.cohort=3", "recovery.seeds=2", "recovery.steps=2"),
    )
    settings = compose_settings([*small, *overrides])
    return Recovery(dataset=load_dataset("digits"), settings=settings)


SMALL = recovery()


def rows_of(experiment: Recovery) -> list[dict[str, Any]]:
    return [row for cell in experiment.cells for row in experiment.run(cell).rows]


def test_every_threat_is_attacked_at_every_noise_and_seed() -> None:
    places = [(cell.threat, cell.noise_multiplier, cell.seed) for cell in SMALL.cells]
    assert len(set(places)) == len(places) == 2 * (4 + 2 * len(WITH_NOISE))
    assert set(WORDS) == set(THREATS)


def test_recovery_succeeds_where_nothing_protects_and_fails_under_noise() -> None:
    summaries = summarised(rows_of(SMALL))
    failing = {(each.threat, each.noise_multiplier): each.fails for each in summaries}
    assert not failing["raw", 0.0]
    assert not failing["clipped", 0.0]
    for threat in ("client_noise", "released_others_known", "dp_sgd"):
        assert not failing[threat, 1e-6]
    for threat in WITH_NOISE:
        assert failing[threat, 1.0]
    assert all(each.images == 4 for each in summaries)
    epsilons = {each.threat: each.epsilon for each in summaries if each.noise_multiplier == 1.0}
    assert epsilons == pytest.approx(dict.fromkeys(WITH_NOISE, 4.3772), abs=1e-3)


def test_the_images_attacked_the_others_and_the_prior_are_different_ones() -> None:
    attacked, others, prior = SMALL._rows(0)
    assert len(others) == 2
    assert len({*attacked, *others, *prior}) == len(attacked) + len(others) + len(prior)
    assert list(SMALL._rows(1)[0]) != list(attacked)


def test_a_cell_s_images_are_the_same_whatever_was_attacked_before() -> None:
    cell = SMALL.cells[3]
    first, again = SMALL.run(cell), SMALL.run(cell)
    assert first.rows == again.rows
    assert np.array_equal(first.recovered, again.recovered)


def test_what_a_cell_found_is_kept_as_it_was(tmp_path: Path) -> None:
    found, file = SMALL.run(SMALL.cells[0]), tmp_path / "cell.npz"
    save_result(found, file)
    same = load_result(file)
    assert same.rows == found.rows  # an infinite epsilon, too
    assert found.rows[0]["epsilon"] == math.inf
    for name in ("truth", "recovered", "nearest", "mean"):
        assert np.array_equal(getattr(same, name), getattr(found, name))
    file.write_bytes(file.read_bytes()[:200])  # half a file is no finished cell
    with pytest.raises(ValueError, match="remove it"):
        load_result(file)


def test_a_recovery_fails_from_the_least_noise_above_which_it_never_succeeds() -> None:
    [first, *_] = summarised(SMALL.run(SMALL.cells[0]).rows)

    def at(noise: float, mse: float) -> Summary:
        means = first.means | {"mse": mse, "mean_image_mse": 0.1}
        return replace(first, noise_multiplier=noise, means=means)

    assert fails_from([at(0.1, 0.2), at(1.0, 0.2), at(0.01, 0.05)]) == at(0.1, 0.2)
    assert fails_from([at(0.1, 0.2), at(1.0, 0.05)]) is None
    assert fails_from([at(0.1, 0.2), at(1.0, 0.1), at(0.01, 0.3)]) == at(0.01, 0.3)
    assert strongest([at(0.1, 0.2), at(0.1, 0.05)]) == [at(0.1, 0.05)]


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need fl-dp[viewer]")
    searching = recovery(
        *("recovery.attacks=[inverting_gradients]", "recovery.threats=[raw,client_noise]"),
        *("recovery.images=1", "recovery.seeds=1", "recovery.steps=1"),
    )
    found = {cell: searching.run(cell) for cell in searching.cells if _is_quick(cell)}
    summaries = summarised([row for each in found.values() for row in each.rows])
    tiles = {
        (cell.threat, cell.noise_multiplier): each
        for cell, each in found.items()
        if cell.part == "noise"
    }
    for name, drawn in (
        ("recovery", draw_recovery(summaries, tmp_path / "recovery.png", title="digits")),
        ("resistance", draw_resistance(summaries, tmp_path / "resistance.png", title="digits")),
        ("images", draw_images(tiles, tmp_path / "images.png", title="digits")),
    ):
        assert drawn
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def _is_quick(cell: RecoveryCell) -> bool:
    return cell.records <= 8 and cell.epochs <= 5


@pytest.mark.parametrize(
    "change",
    [
        ["recovery.images=30"],
        ["model=cnn"],
        ["model=resnet18", "recovery.attacks=[idlg]", "recovery.resistance=true"],
    ],
)
def test_what_can_t_be_attacked_is_refused_before_anything_starts(change: list[str]) -> None:
    with pytest.raises(ValueError, match=r"prior|leave|plain"):
        recovery(*change)
