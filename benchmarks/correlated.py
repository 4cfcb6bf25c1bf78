"""What correlated noise costs to prepare and to draw.

The coefficients are timed at the sizes of docs/correlated_noise.md. The noise of a round with 16
bands takes turns with independent noise of the same size. jax-privacy's optimiser finds the same
coefficients but wants an environment of its own: `--jax-privacy` names its Python; without it the
result says that it was left out.

    python benchmarks/correlated.py [--json] [--repeats 9] [--jax-privacy /path/to/bin/python]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from side_by_side import Case, compare

from fl_dp.accounting import model_error, optimal_coefficients, squared_norm
from fl_dp.accounting.banded import _optimal
from fl_dp.mechanisms import BandedStream, NoiseStream, SecureRandom, WhiteStream
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian

CASES = ((100, 10), (300, 30), (1000, 16), (1000, 100), (2000, 100), (2000, 500))
SIZE, BANDS, ROUNDS = 1_000_000, 16, 1000
LAW = DiscreteGaussian(1.3 * 2.0**30)
LEFT_OUT = "left out: name a Python that has jax_privacy with --jax-privacy"
_PEER = """
import json, sys, time
from jax_privacy.matrix_factorization import toeplitz
rounds, bands = map(int, sys.argv[1:])
start = time.perf_counter()
toeplitz.optimize_banded_toeplitz(rounds, bands)
print(json.dumps(time.perf_counter() - start))
"""


def optimiser(repeats: int, peer: str | None) -> dict[str, Any]:
    """Time the search for coefficients, and the peer's if any."""
    results: dict[str, Any] = {}
    for rounds, bands in CASES:
        seconds = []
        for _ in range(repeats):
            _optimal.cache_clear()  # found again, not remembered
            start = time.perf_counter()
            best = optimal_coefficients(rounds, bands)
            seconds.append(time.perf_counter() - start)
        results[f"{rounds} rounds, {bands} bands"] = {
            "ours_s": statistics.median(seconds),
            "loss": model_error(best, rounds) * squared_norm(best),
            "jax_privacy_s": LEFT_OUT if peer is None else _peer_seconds(peer, rounds, bands),
        }
    return results


def _peer_seconds(python: str, rounds: int, bands: int) -> float:
    told = subprocess.run(
        [python, "-c", _PEER, str(rounds), str(bands)], check=True, capture_output=True, text=True
    )
    return float(json.loads(told.stdout))


def drawing(repeats: int) -> dict[str, dict[str, float]]:
    """Time a round's noise with memory beside fresh noise, in turns."""
    rng, index = SecureRandom(), count()
    banded, white = BandedStream(optimal_coefficients(ROUNDS, BANDS)), WhiteStream()

    def draw(stream: NoiseStream, at: int) -> object:
        return stream.next(LAW, SIZE, rng, index=at)

    fresh = count()
    for _ in range(BANDS):  # a full memory
        draw(banded, next(index))
    case = Case(
        name=f"noise of a round, {BANDS} bands, {SIZE} coordinates",
        peer="independent noise",
        ours=lambda: draw(banded, next(index)),
        theirs=lambda: draw(white, next(fresh)),
    )
    return compare([case], repeats)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the timings as a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    parser.add_argument("--repeats", type=int, default=9, help="timings a side (default: 9)")
    parser.add_argument("--jax-privacy", help="a Python that has jax_privacy, to time it too")
    options = parser.parse_args(arguments)
    results = {
        "optimiser": optimiser(min(options.repeats, 3), options.jax_privacy),
        "noise": drawing(options.repeats),
    }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, row in results["optimiser"].items():
        print(f"{name}: {row['ours_s']:.3f} s, loss {row['loss']:.4f}; {row['jax_privacy_s']}")
    for name, row in results["noise"].items():
        print(f"{name}: {1e3 * row['ours_s']:.0f} ms, {row['ratio']:.2f} of independent noise")


if __name__ == "__main__":
    main()
