"""What an audit says of noise by itself: which violation it would have noticed."""

from __future__ import annotations

import numpy as np

from fl_dp.lab.audit.noise_findings import coordinates_are_new, noise_is_new


def powers(releases: int) -> str:
    rows = np.random.default_rng(0).standard_normal((releases, 400))
    of_releases, of_coordinates = (
        test(rows, alpha=1e-6).power for test in (noise_is_new, coordinates_are_new)
    )
    return f"{of_releases}; {of_coordinates}"


def test_few_releases_say_nothing_of_seeds_and_of_draws_that_two_coordinates_share() -> None:
    said = powers(3)
    assert said.count("nothing with so few releases") == 2
    assert " 0 bits" not in said and " 1 of the coordinates" not in said


def test_many_releases_say_how_long_a_seed_and_how_many_shared_draws_are_seen() -> None:
    said = powers(100)
    # 4950 pairs: a seed of 10 bits is used twice 19 times of 20 with 78 releases, of 11 with 111.
    assert "a seed of 10 bits or fewer" in said
    assert "so few releases" not in said


def test_a_weak_correlation_of_neighbours_is_seen() -> None:
    # Far below what a single pair of releases shows.
    rows = np.random.default_rng(1).standard_normal((100, 400))
    assert not noise_is_new(rows, alpha=1e-6).caught
    rows[1:] += 0.1 * rows[:-1]
    assert noise_is_new(rows, alpha=1e-6).caught
