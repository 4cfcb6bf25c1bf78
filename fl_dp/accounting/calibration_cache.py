"""Calibrated noise on disk, as a search takes seconds to minutes and a sweep repeats it.

An entry is a hint: its reader checks that the noise fits the budget. So no file here can lower a
training's noise, and a lost one costs only time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

from fl_dp.files import cache_folder, private_folder, write_text

from .budget import NeighboringRelation
from .events import FrozenHistory, event_to_dict

SWITCH = "FL_DP_CALIBRATIONS"
"""Environment variable: `off` neither reads nor writes; an absolute path is the cache's folder."""

_LIBRARIES = ("fl-dp", "dp-accounting", "numpy", "scipy")
_LONGEST = 100  # characters of an entry


@dataclass(frozen=True)
class CachedCalibration:
    """The cache file of one calibration.

    Attributes:
        file: Its path, which may not exist yet.
    """

    file: Path

    @classmethod
    def of(
        cls,
        folder: Path,
        releases: Sequence[FrozenHistory],
        target_epsilon: float,
        target_delta: float,
        relation: NeighboringRelation,
    ) -> Self:
        """The cache file of a calibration; `releases` are those at a few fixed noises."""
        histories = [
            [[event_to_dict(event), count] for event, count in history] for history in releases
        ]
        question = {
            "releases": histories,
            "epsilon": target_epsilon,
            "delta": target_delta,
            "neighboring_relation": str(relation),
            "made_by": _made_by(),
        }
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        return cls(folder / f"{digest}.json")

    def read(self) -> float | None:
        """The cached noise, unverified; None if none is readable."""
        try:
            with self.file.open(encoding="utf-8") as stream:
                noise = json.loads(stream.read(_LONGEST))["noise_multiplier"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        if not isinstance(noise, float) or not (math.isfinite(noise) and noise > 0.0):
            return None
        return noise

    def write(self, noise: float) -> None:
        """Cache a noise for this user alone; a disk that can't be written is no error."""
        with contextlib.suppress(OSError):
            private_folder(self.file.parent)
            write_text(self.file, json.dumps({"noise_multiplier": noise}) + "\n")


def folder_of_calibrations() -> Path | None:
    """The folder of calibrations; None without a cache."""
    chosen = os.environ.get(SWITCH, "")
    if chosen == "off":
        return None
    if Path(chosen).is_absolute():
        return Path(chosen)
    folder = cache_folder()
    return None if folder is None else folder / "calibrations"


@cache
def _made_by() -> dict[str, str]:
    """What a calibration depends on: versions, and this package's own text."""
    made_by = {}
    for name in _LIBRARIES:
        try:
            made_by[name] = version(name)
        except PackageNotFoundError:
            made_by[name] = "not installed"
    source = hashlib.sha256()
    with contextlib.suppress(OSError):  # from a zip file: the version alone
        for file in sorted(Path(__file__).parent.glob("*.py")):
            source.update(file.read_bytes())
    return made_by | {"source": source.hexdigest()}
