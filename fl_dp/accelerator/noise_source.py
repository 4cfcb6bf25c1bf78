"""Where a release's noise is drawn: on the device that holds the sum, or on the host.

    >>> noise = NoiseSource(total.device).integers(mechanism.law, total.numel(), rng)

Privacy: the law's, wherever it is drawn, so a release is charged the same. On a device each draw
has its own keys of 256 bits from the operating system (`SecureRandom.key`), which are overwritten.
PyTorch's allocator keeps other parts of a draw until it gives their memory away again, as NumPy's
does on the host.

A CUDA graph can't capture a draw: its replays would release with the same noise, and the difference
of two such releases has none.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian
from fl_dp.mechanisms.grid import IntegerLaw

from .chacha import START, write_start
from .device_gaussian import DeviceGaussian

_WORTH_A_DEVICE = 1 << 17  # draws; the host takes 2 ms for them, a device some hundred launches
_OF_ONE_KEY = 1 << 24  # draws; their work arrays take 1 to 2 GB


class NoiseSource:
    """Draws integers for one device."""

    def __init__(self, device: torch.device) -> None:
        """Set the device that the noise is for."""
        self._device = device

    def integers(self, law: IntegerLaw, size: int, rng: SecureRandom) -> Tensor:
        """Return independent draws of a law, int64 `(size,)` on the device, for one release.

        `rng` gives the keys, or draws on the host. With a seed, the draws of a device and of the
        host differ.

        Raises:
            RuntimeError: The device does not compute ChaCha20 right, or a CUDA graph is captured.
        """
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "noise was asked for while a CUDA graph is captured, whose replays would repeat "
                "it: draw before each replay, and copy the noise into the graph's memory"
            )
        if not (isinstance(law, DiscreteGaussian) and _draws_there(self._device, size)):
            return torch.from_numpy(law.sample(size, rng)).to(self._device)
        sampler = _sampler(law, self._device)
        while True:
            noise, is_whole = self._drawn(sampler, size, rng)
            if is_whole:
                return noise
            noise.zero_()

    def for_host(self, law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        """Return the draws of `integers` in the host's memory, for `WhiteStream`."""
        drawn = self.integers(law, size, rng)
        noise: NDArray[np.int64] = drawn.cpu().numpy()
        if drawn.device.type != "cpu":
            drawn.zero_()
        return noise

    def _drawn(self, sampler: DeviceGaussian, size: int, rng: SecureRandom) -> tuple[Tensor, bool]:
        """Draw once, and wait until the device says whether its room sufficed."""
        parts = [slice(i, min(i + _OF_ONE_KEY, size)) for i in range(0, size, _OF_ONE_KEY)]
        pinned = self._device.type == "cuda"
        starts = torch.empty(len(parts), START, dtype=torch.int32, pin_memory=pinned)
        for start in starts:
            key = rng.key()
            write_start(start, key)
            key[:] = bytes(len(key))
        on_device = starts.to(self._device, non_blocking=True, copy=True)
        noise = torch.empty(size, dtype=torch.int64, device=self._device)
        whole = torch.empty(len(parts), dtype=torch.bool, device=self._device)
        for number, part in enumerate(parts):
            drawn, whole[number] = sampler.draw(part.stop - part.start, on_device[number])
            noise[part] = drawn
            drawn.zero_()
        on_device.zero_()
        is_whole = bool(whole.all())
        # Only now: the device has read them, and keys zeroed too early are keys of zeros.
        starts.zero_()
        return noise, is_whole


def _draws_there(device: torch.device, size: int) -> bool:
    """Whether the device is quicker: the host's AES is quicker than ChaCha20 by its operators."""
    return device.type == "cuda" and size >= _WORTH_A_DEVICE


@lru_cache(maxsize=16)
def _sampler(law: DiscreteGaussian, device: torch.device) -> DeviceGaussian:
    return DeviceGaussian(law, device)
