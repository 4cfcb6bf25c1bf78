"""Noise that a device draws has the host's law, its own keys, and one wait of the host.

On the CPU the same code runs. False alarms: below 1e-6 a test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from counted_operators import counted
from laws import ALARM, discrete_gaussian_pmf, law_p, normal_p
from numpy.typing import NDArray
from torch import Tensor

from fl_dp.accelerator import chacha, noise_source
from fl_dp.accelerator.device_gaussian import DeviceGaussian
from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.clients.per_record.dp_sgd import private_sum
from fl_dp.mechanisms import GaussianMechanism, LaplaceMechanism, SecureRandom, WhiteStream
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian, discrete_gaussian
from fl_dp.mechanisms.randomness import CHUNK

CPU = torch.device("cpu")
DRAWS = 1_000_000
LARGE = 1.7 * 2.0**30


@pytest.fixture
def _drawn_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU draw as an accelerator does."""
    monkeypatch.setattr(noise_source, "_draws_there", lambda device, size: True)


def draws(scale: float, size: int, rng: SecureRandom | None = None) -> NDArray[np.int64]:
    return NoiseSource(CPU).for_host(discrete_gaussian(scale), size, rng or SecureRandom())


@pytest.mark.slow
@pytest.mark.usefixtures("_drawn_there")
@pytest.mark.parametrize("scale", [0.5, 2.0, 40.3])
def test_integers_follow_the_exact_law_and_the_test_has_power(scale: float) -> None:
    drawn = draws(scale, DRAWS)
    assert law_p(drawn, *discrete_gaussian_pmf(scale)) > ALARM
    for wrong in (0.9 * scale, 1.1 * scale):
        assert law_p(draws(wrong, DRAWS), *discrete_gaussian_pmf(scale)) < ALARM


@pytest.mark.slow
@pytest.mark.usefixtures("_drawn_there")
@pytest.mark.parametrize("scale", [2.0**30, LARGE])
def test_noise_on_the_grid_is_gaussian_and_the_test_has_power(scale: float) -> None:
    sample = draws(scale, DRAWS) / scale
    assert normal_p(sample) > ALARM
    for wrong in (0.9, 1.1):
        assert normal_p(wrong * sample) < ALARM
    bound = 5.0 / np.sqrt(DRAWS)  # five standard errors: 6e-7
    for lag in (1, 2, 64, 8192):
        assert abs(np.mean(sample[lag:] * sample[:-lag])) < bound


class Replayed:
    """Gives NumPy's sampler the words that it is told, a list's entry a call."""

    def __init__(self, words: list[NDArray[np.uint64]]) -> None:
        self._words = words

    def words(self, count: int, *, room: Any = None) -> NDArray[np.uint64]:
        drawn = self._words.pop(0)
        assert len(drawn) == count
        return drawn

    uniforms = SecureRandom.uniforms


def signed(words: NDArray[np.uint64]) -> Tensor:
    return torch.from_numpy(words.view(np.int64))


@pytest.mark.parametrize("scale", [0.3, 0.7, 3.2, 40.0, 1000.0, 2.0**30, LARGE, 2.0**31])
def test_the_same_words_give_the_draws_of_numpy(scale: float) -> None:
    law = DiscreteGaussian(scale)
    sampler, table, buckets = DeviceGaussian(law, CPU), law.centred, law.centred.buckets
    rng = np.random.default_rng(int(scale))
    for _ in range(4):
        words = rng.integers(0, 1 << 64, CHUNK + 5000, dtype=np.uint64)
        slot = (words >> np.uint64(50)).astype(np.int64)
        is_open = (words & buckets.coin) >= buckets.sure_below[slot]
        torn = buckets.torn[slot[is_open]]
        more = rng.integers(0, 1 << 64, (2, int(is_open.sum()) + 50), dtype=np.uint64)
        ends = [more[0, : is_open.sum()][torn]] if torn.any() else []
        chunks = [words[:CHUNK].copy(), words[CHUNK:].copy()]
        replayed: Any = Replayed([*chunks, *ends, more[1, : is_open.sum()]])
        expected = np.empty(words.size, np.int64)
        rejected = buckets.propose(expected, replayed, table.centred)
        values, accepted, opened = sampler.propose(signed(words), signed(more))
        np.testing.assert_array_equal(values.numpy(), expected)
        np.testing.assert_array_equal(np.flatnonzero(~accepted.numpy()), rejected)
        assert int(opened) == is_open.sum()


@pytest.mark.usefixtures("_drawn_there")
@pytest.mark.parametrize("scale", [0.05, 0.7, LARGE])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_there_is_room_for_any_number_of_draws(scale: float, size: int) -> None:
    rng = SecureRandom()
    sampler = DeviceGaussian(discrete_gaussian(scale), CPU)
    for _ in range(20):
        noise, is_whole = NoiseSource(CPU)._drawn(sampler, size, rng)
        assert is_whole and noise.shape == (size,)


@pytest.mark.parametrize("missing", ["room", "proposals"])
def test_a_draw_says_where_its_room_did_not_suffice(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    sampler = DeviceGaussian(discrete_gaussian(LARGE), CPU)
    propose = sampler.propose

    def short(words: Tensor, more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if missing == "room":
            return propose(words, more[:, :10])
        value, accepted, opened = propose(words, more)
        accepted[: len(accepted) // 2] = False
        return value, accepted, opened

    assert NoiseSource(CPU)._drawn(sampler, 10_000, SecureRandom())[1]
    monkeypatch.setattr(sampler, "propose", short)
    if missing == "room":  # the draw compares with the room that it gave
        monkeypatch.setattr(sampler, "open", 0.0)
        monkeypatch.setattr(sampler, "propose", propose)
    assert not NoiseSource(CPU)._drawn(sampler, 10_000, SecureRandom())[1]


class Noted(SecureRandom):
    """Notes the keys that it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[bytes] = []

    def key(self) -> bytearray:
        key = super().key()
        self.given.append(bytes(key))
        return key


@pytest.mark.usefixtures("_drawn_there")
def test_a_draw_without_room_is_drawn_anew_with_another_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law, rng = discrete_gaussian(LARGE), Noted()
    draw, discarded = DeviceGaussian.draw, []

    def failing(self: DeviceGaussian, count: int, start: Tensor) -> tuple[Tensor, Tensor]:
        noise, whole = draw(self, count, start)
        if len(rng.given) < 3:
            discarded.append(noise.clone())
            return noise, torch.zeros_like(whole)
        return noise, whole

    monkeypatch.setattr(DeviceGaussian, "draw", failing)
    noise = NoiseSource(CPU).integers(law, 1000, rng)
    assert len(set(rng.given)) == 3
    assert len(discarded) == 2
    assert not any(torch.equal(noise, other) for other in discarded)


@pytest.mark.usefixtures("_drawn_there")
def test_each_draw_and_each_of_its_parts_has_a_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise_source, "_OF_ONE_KEY", 400)
    rng, law = Noted(), discrete_gaussian(LARGE)
    first, second = (NoiseSource(CPU).integers(law, 1000, rng) for _ in range(2))
    assert len(set(rng.given)) == 6
    parts = [each[i : i + 400] for each in (first, second) for i in (0, 400)]
    for number, part in enumerate(parts):
        assert not any(torch.equal(part, other) for other in parts[number + 1 :])


def test_a_draw_is_what_its_key_s_words_propose_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accepted values in the order of proposals, and of nothing but the key."""
    sampler = DeviceGaussian(discrete_gaussian(2.0**30), CPU)
    start = torch.empty(chacha.START, dtype=torch.int32)
    chacha.write_start(start, SecureRandom().key())
    calls: list[tuple[Tensor, Tensor]] = []
    propose = sampler.propose

    def noted(words: Tensor, more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append((words.clone(), more.clone()))
        return propose(words, more)

    monkeypatch.setattr(sampler, "propose", noted)
    noise, whole = sampler.draw(5000, start)
    ((given, more),) = calls
    drawn = torch.cat([given, more.flatten()])
    assert bool(whole) and torch.equal(drawn, chacha.key_stream(start, len(drawn)))
    values, accepted, _ = propose(given, more)
    assert not accepted.all()
    assert torch.equal(noise, values[accepted][:5000])


@pytest.mark.usefixtures("_drawn_there")
def test_a_seed_repeats_the_noise_and_nothing_else_does() -> None:
    first, again = (draws(LARGE, 1000, SecureRandom(insecure_seed=5)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (draws(LARGE, 1000, SecureRandom(insecure_seed=6)) != first).any()
    assert (draws(LARGE, 1000) != draws(LARGE, 1000)).any()
    rng = SecureRandom(insecure_seed=5)
    assert (draws(LARGE, 1000, rng) != draws(LARGE, 1000, rng)).any()


@pytest.mark.usefixtures("_drawn_there")
def test_keys_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytearray] = []
    starts: list[Tensor] = []
    write, draw = chacha.write_start, DeviceGaussian.draw

    def noted_key(start: Tensor, key: bytearray) -> None:
        keys.append(key)
        starts.append(start)
        write(start, key)

    def noted_start(self: DeviceGaussian, count: int, start: Tensor) -> tuple[Tensor, Tensor]:
        starts.append(start)
        assert start.count_nonzero()
        return draw(self, count, start)

    monkeypatch.setattr(noise_source, "write_start", noted_key)
    monkeypatch.setattr(DeviceGaussian, "draw", noted_start)
    NoiseSource(CPU).integers(discrete_gaussian(LARGE), 100, SecureRandom())
    (key,), (here, there) = keys, starts
    assert here.data_ptr() != there.data_ptr()
    assert not any(key) and not here.count_nonzero() and not there.count_nonzero()


@pytest.mark.usefixtures("_drawn_there")
def test_a_draw_costs_one_copy_one_wait_and_as_many_operators_for_any_length() -> None:
    law, source, rng = discrete_gaussian(LARGE), NoiseSource(CPU), SecureRandom()
    source.integers(law, 10, rng)
    counts = []
    for size in (100, 50_000):
        with counted() as run:
            source.integers(law, size, rng)
        assert run.copies == {"to": 1}  # the keys
        assert run.waits == {"__bool__": 1}  # whether the room sufficed
        counts.append(run.total)
    assert counts[0] == counts[1] <= 660, counts


def test_no_graph_captures_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    rng = Noted()
    with pytest.raises(RuntimeError, match="whose replays would repeat it"):
        NoiseSource(torch.device("cuda")).integers(discrete_gaussian(LARGE), 1000, rng)
    assert not rng.given


def test_the_host_draws_for_the_cpu_for_short_vectors_and_for_other_laws() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    drawn = NoiseSource(CPU).integers(mechanism.law, 200_000, SecureRandom(insecure_seed=1))
    expected = mechanism.noise(200_000, SecureRandom(insecure_seed=1))
    np.testing.assert_array_equal(drawn.numpy(), expected)
    gpu = torch.device("cuda")
    assert noise_source._draws_there(gpu, 1 << 17)
    assert not noise_source._draws_there(gpu, (1 << 17) - 1)
    assert not noise_source._draws_there(CPU, 1 << 30)


@pytest.mark.usefixtures("_drawn_there")
def test_a_law_without_tables_here_is_drawn_by_the_host() -> None:
    law = LaplaceMechanism(noise_multiplier=1.0, clipping_norm=1.0).law
    drawn = NoiseSource(CPU).integers(law, 1000, SecureRandom(insecure_seed=1))
    np.testing.assert_array_equal(drawn.numpy(), law.sample(1000, SecureRandom(insecure_seed=1)))


# Where it is used.


@pytest.mark.slow
@pytest.mark.usefixtures("_drawn_there")
def test_a_private_sum_of_a_device_has_the_charged_deviation() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.3, clipping_norm=0.5)
    total = torch.full((DRAWS,), 0.25, dtype=torch.float64)
    noise = (private_sum(total, mechanism, SecureRandom()).numpy() - 0.25) / mechanism.noise_std
    assert normal_p(noise) > ALARM
    for wrong in (0.9, 1.1):
        assert normal_p(wrong * noise) < ALARM


@pytest.mark.usefixtures("_drawn_there")
def test_a_private_sum_of_a_device_is_what_the_mechanism_releases() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.3, clipping_norm=0.5)
    total = torch.from_numpy(np.random.default_rng(0).normal(size=1000))
    steps = np.trunc(total.numpy() / mechanism.grid)
    noise = draws_of(mechanism, 1000, seed=9)
    released = private_sum(total.clone(), mechanism, SecureRandom(insecure_seed=9))
    np.testing.assert_array_equal(released.numpy(), mechanism.release(steps, noise))


def draws_of(mechanism: GaussianMechanism, size: int, *, seed: int) -> NDArray[np.int64]:
    source = NoiseSource(CPU)
    return source.for_host(mechanism.law, size, SecureRandom(insecure_seed=seed))


@pytest.mark.usefixtures("_drawn_there")
@pytest.mark.parametrize("size", [1000, 200_000])
def test_a_central_release_can_draw_on_a_device(size: int) -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.3, clipping_norm=0.5)
    stream = WhiteStream(NoiseSource(CPU).for_host)
    rng = SecureRandom(insecure_seed=9)
    stream.draw_ahead(mechanism.law, size, rng, index=0)
    noise = stream.next(mechanism.law, size, rng, index=0)
    host = WhiteStream().next(mechanism.law, size, SecureRandom(insecure_seed=9), index=0)
    assert noise.dtype == np.int64 and noise.shape == (size,)
    assert (noise != host).any()
    assert normal_p(noise / mechanism.law.scale) > ALARM


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU here")
@pytest.mark.parametrize("scale", [2.0**30, LARGE])
def test_a_gpu_draws_by_this_law(scale: float) -> None:
    source = NoiseSource(torch.device("cuda"))
    drawn = source.integers(discrete_gaussian(scale), 10_000_000, SecureRandom())
    assert drawn.device.type == "cuda"
    sample = drawn.cpu().numpy() / scale
    assert normal_p(sample) > ALARM
    for wrong in (0.9, 1.1):
        assert normal_p(wrong * sample) < ALARM
