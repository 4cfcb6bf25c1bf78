"""User code: what it draws depends on nothing outside, and what it raises ends nothing outside."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fl_dp.mechanisms import SecureRandom
from fl_dp.user_code import Contained, own_chance


def draws() -> tuple[float, ...]:
    of_numpy = float(np.random.normal()), float(np.random.rand())
    return random.random(), *of_numpy, float(torch.rand(()))


def seeded() -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


def test_what_a_block_draws_depends_on_no_seed_of_the_process() -> None:
    drawn = []
    for _ in range(2):
        seeded()
        with own_chance():
            drawn.append(draws())
    assert not set(drawn[0]) & set(drawn[1])
    again = []
    for _ in range(2):
        seeded()
        again.append(draws())
    assert again[0] == again[1]  # power: without a block it does


def test_equal_sources_give_equal_chance() -> None:
    drawn = []
    for _ in range(2):
        with own_chance(SecureRandom(insecure_seed=1)) as seed_again:
            drawn.append(draws())
            seed_again()
            drawn.append(draws())
    assert drawn[:2] == drawn[2:]
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.parametrize("ends", [None, RuntimeError, SystemExit])
def test_the_process_goes_on_drawing_as_if_there_had_been_no_block(
    ends: type[BaseException] | None,
) -> None:
    seeded()
    np.random.normal()  # leaves half of a pair behind
    expected = draws()
    seeded()
    np.random.normal()
    try:
        with own_chance():
            draws()
            if ends is not None:
                raise ends
    except BaseException as error:
        assert type(error) is ends
    assert draws() == expected


def without_gradients() -> None:
    torch.set_grad_enabled(False)


entered: list[torch.inference_mode] = []  # a mode ends with its object


def with_inference_mode_entered() -> None:
    entered.append(torch.inference_mode())
    entered[-1].__enter__()


def in_float64() -> None:
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("ends", [None, SystemExit])
@pytest.mark.parametrize("leave", [without_gradients, with_inference_mode_entered, in_float64])
def test_a_mode_of_torch_that_a_block_leaves_behind_changes_no_later_training(
    leave: Callable[[], None], ends: type[BaseException] | None
) -> None:
    """Before, one client without gradients took the updates of all after it: three norms of 3."""
    try:
        with Contained(), own_chance():
            leave()
            if ends is not None:
                raise ends
        weight = torch.ones(2, requires_grad=True)
        [gradient] = torch.autograd.grad((weight * torch.tensor(3.0)).sum(), [weight])
        assert gradient.tolist() == [3.0, 3.0]
        assert torch.get_default_dtype() == torch.float32
    finally:
        while entered:
            entered.pop().__exit__(None, None, None)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("leave", [without_gradients, in_float64])
def test_a_mode_of_torch_that_a_record_leaves_behind_changes_no_next_one(
    leave: Callable[[], None],
) -> None:
    with own_chance() as seed_again:
        leave()
        seed_again()
        assert torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float32


def in_autocast() -> None:
    torch.set_autocast_enabled("cpu", True)


def on_another_device() -> None:
    torch.set_default_device("meta")


def deterministic() -> None:
    torch.use_deterministic_algorithms(True)


def with_more_threads() -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


@pytest.mark.parametrize(
    "leave", [in_autocast, on_another_device, deterministic, with_more_threads]
)
def test_no_default_of_torch_outlasts_a_block(leave: Callable[[], None]) -> None:
    def defaults() -> tuple[Any, ...]:
        return (
            torch.is_autocast_enabled("cpu"),
            torch.get_default_device(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )

    before = defaults()
    with own_chance():
        leave()
        assert defaults() != before
    assert defaults() == before


def test_a_block_without_gradients_stays_one_inside() -> None:
    with torch.no_grad(), own_chance():
        assert not torch.is_grad_enabled()
    with torch.inference_mode(), own_chance():
        assert torch.is_inference_mode_enabled()


def other_numpy_generator() -> None:
    np.random.mtrand.set_bit_generator(np.random.PCG64(1))


@pytest.mark.parametrize("meddle", [seeded, other_numpy_generator])
def test_code_that_seeds_the_process_in_a_block_fixes_nothing_behind_it(
    meddle: Callable[[], None],
) -> None:
    seeded()
    expected = draws()
    drawn = []
    for _ in range(2):
        seeded()
        with own_chance() as seed_again:
            meddle()
            seed_again()
            drawn.append(draws())
            meddle()
        assert draws() == expected
    assert not set(drawn[0]) & set(drawn[1])


def test_a_generator_that_numpy_was_given_is_put_back() -> None:
    ours = np.random.mtrand.get_bit_generator()
    try:
        np.random.mtrand.set_bit_generator(np.random.PCG64(3))
        expected = np.random.rand(2)
        np.random.mtrand.set_bit_generator(np.random.PCG64(3))
        first = np.random.rand()
        with own_chance():
            draws()
        np.testing.assert_array_equal([first, np.random.rand()], expected)
    finally:
        np.random.mtrand.set_bit_generator(ours)


# Failures.


class Panic(BaseException):
    """What a native library raises that is written in Rust."""


@pytest.mark.parametrize("kind", [ValueError, SystemExit, GeneratorExit, Panic, MemoryError])
def test_a_failure_of_any_kind_ends_its_block_alone_and_is_logged(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    with Contained("unit %d failed", 3) as attempt:
        raise kind("why")
    assert type(attempt.failure) is kind
    [logged] = caplog.records
    assert logged.getMessage() == "unit 3 failed" and logged.levelno == logging.ERROR
    assert "why" in caplog.text


def test_the_keyboard_ends_everything() -> None:
    with pytest.raises(KeyboardInterrupt), Contained("no failure"):
        raise KeyboardInterrupt


def test_a_block_that_ends_well_has_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    with Contained("unit %d failed", 3) as attempt:
        pass
    assert attempt.failure is None
    with Contained():
        raise ValueError
    assert not caplog.records
