"""What a node adds to its sums, before its share of the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_dp.mechanisms.noise_share import NoiseShare


class Encoded:
    """Keeps the values of each sum, in clipping norms, before any noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: list[NDArray[np.float64]] = []
        encode = NoiseShare.encode

        def kept(share: NoiseShare, values: Any, rng: Any) -> Any:
            self.values.append(np.concatenate(values))
            return encode(share, values, rng)

        monkeypatch.setattr(NoiseShare, "encode", kept)
