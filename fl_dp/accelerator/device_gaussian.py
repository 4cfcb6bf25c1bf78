"""The discrete Gaussian on any device, by the host's own tables.

The same words give the host's draws (`mechanisms.buckets`), so every integer's probability is right
to a relative 2^-49 here, too. A word proposes a value. About one proposal in ten is open, and gets
two more words: they decide its bucket and the next 53 bits of its coin.

The host never waits: there is room for a fixed number of open proposals, and a fixed number of
proposals is made. A draw says whether both sufficed; they fail with a probability below 2^-150,
whatever the noise hides.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_dp.mechanisms.buckets import REST_BITS, SLOT_BITS
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian

from .chacha import key_stream

_REST = int(REST_BITS)
_SIGN = -(1 << 63)  # flipped, it turns the order of unsigned numbers into that of signed ones


class DeviceGaussian:
    """The law N_Z(0, scale^2) on a device.

    Attributes:
        open: Probability that a proposal is open.
        accepted: Lower bound on the probability that a proposal is accepted.
    """

    def __init__(self, law: DiscreteGaussian, device: torch.device) -> None:
        """Copy the law's tables, about .5 MB, to the device."""
        self._scale, self._device = law.scale, device
        table, buckets = law.centred, law.centred.buckets

        def there(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        self._slot_low, self._low = there(buckets.slot_low), there(buckets.low)
        self._sure_below = there(buckets.sure_below.view(np.int64))
        self._torn, self._bucket = there(buckets.torn), there(buckets.bucket)
        self._ends = there(buckets.ends.view(np.int64) ^ np.int64(_SIGN))
        self._cap, self._envelope = there(buckets.cap), there(table.envelope)
        self._offset, self._coin = int(buckets.offset), int(buckets.coin)
        self._coin_shift, self._coin_bits = int(buckets.coin_shift), buckets.coin_bits
        self.open = 1.0 - float(np.mean(buckets.sure_below / 2.0**_REST))
        # The law's mass over the proposals'. Poisson's formula: it is at least an integral's; the
        # rest is more than the mass beyond the table, and than the weights are rounded by.
        mass = np.exp(-(table.envelope**2) / (2.0 * law.scale**2)).sum() * 2.0**self._coin_shift
        self.accepted = 0.99999 * math.sqrt(2.0 * math.pi) * law.scale / float(mass)

    def draw(self, count: int, start: Tensor) -> tuple[Tensor, Tensor]:
        """Draw by the words of one key.

        Args:
            count: Number of draws.
            start: A stream's start on the device, of a key for this draw alone (`chacha`).

        Returns:
            Independent draws, int64 `(count,)`, and a bool on the device. Where that is false, the
            draws are unusable: draw with another key.
        """
        # By Bernstein's inequality both numbers suffice but with probability 2^-151.
        needed = count / self.accepted
        number = math.ceil(needed + 24.0 * math.sqrt(needed * (1.0 - self.accepted)) + 500.0)
        mean = self.open * number
        room = min(number, math.ceil(mean + 16.0 * math.sqrt(mean) + 250.0))
        words = key_stream(start, number + 2 * room)
        value, accepted, opened = self.propose(words[:number], words[number:].view(2, room))
        # The first accepted ones, in the order of proposals: places say nothing of values.
        target = accepted.cumsum(0)
        whole = (target[-1] >= count) & (opened <= room)
        target = torch.where(accepted & (target <= count), target - 1, count)
        noise = torch.zeros(count + 1, dtype=torch.int64, device=self._device)
        noise.scatter_(0, target, value)  # the last number takes all others
        for secret in (words, value, noise[count:]):
            secret.zero_()
        return noise[:count], whole

    def propose(self, words: Tensor, more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Propose a value for each word.

        Args:
            words: Int64 `(n,)`.
            more: Two more words for each of as many open proposals as there is room for, int64
                `(2, room)`.

        Returns:
            Values, int64 `(n,)`, whether each is accepted, and how many were open. Open ones beyond
            the room are accepted unseen: then nothing may be used.
        """
        count, room = len(words), more.shape[1]
        slot = _shifted(words, _REST)
        # One more place, for those that are none.
        value = torch.empty(count + 1, dtype=torch.int64, device=self._device)
        torch.add(self._slot_low[slot], words & self._offset, out=value[:count])
        is_open = (words & self._coin) >= self._sure_below[slot]
        # The open ones' numbers, in `room` places; `count` where there is none.
        target = is_open.cumsum(0)
        opened = target[-1]
        target = torch.where(is_open & (target <= room), target - 1, room)
        numbers = torch.full((room + 1,), count, device=self._device)
        numbers.scatter_(0, target, torch.arange(count, device=self._device))
        exists = torch.arange(room, device=self._device) < opened
        numbers = torch.where(exists, numbers[:room], count)
        word = words[numbers.clamp(max=count - 1)]
        slot = _shifted(word, _REST)
        position = (word >> _REST << _REST) | _shifted(more[0], SLOT_BITS)
        torn = torch.searchsorted(self._ends, position ^ _SIGN, right=True)
        bucket = torch.where(self._torn[slot], torn, self._bucket[slot])
        candidate = self._low[bucket] + (word & self._offset)
        coin = ((word & self._coin) >> self._coin_shift).double()
        uniform = (_shifted(more[1], 12).double() + 0.5) * 2.0**-52
        fine = (coin + uniform) * 2.0**-self._coin_bits
        envelope = self._envelope[bucket]
        odds = (candidate - envelope).mul_(candidate + envelope).div_(-2.0 * self._scale**2).exp_()
        accepted = torch.ones(count + 1, dtype=torch.bool, device=self._device)
        accepted.scatter_(0, numbers, fine < self._cap[bucket] * odds)
        value.scatter_(0, numbers, candidate)
        for secret in (candidate, value[count:]):
            secret.zero_()
        return value[:count], accepted[:count], opened


def _shifted(words: Tensor, bits: int) -> Tensor:
    """`words >> bits` of unsigned words."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
