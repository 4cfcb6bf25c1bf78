"""Cost of a secure sum, beside the same steps with Flower's SecAgg+.

Flower's side are the functions that its mod and workflow call, in order, without messages. Both
sides leave out the nodes' key exchange. Ours adds no noise here: `noise.py` times that.

    python benchmarks/secagg.py [--json] [--repeats 5] [--cohorts 10 100 1000]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from flwr.common import ndarray_to_bytes
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes
from side_by_side import Case, compare

from fl_dp.mechanisms import Segment
from fl_dp.secagg import OpenSum, SumTerms
from fl_dp.secagg.client import MaskedMessage, Participation
from fl_dp.secagg.member import Opened, open_bundles
from fl_dp.secagg.texts import prf

_BITS, _MOD, _TARGET = 16, 1 << 32, 1 << 22  # ours; Flower's defaults


@dataclass(frozen=True, kw_only=True)
class Size:
    """A federation as in the table of docs/secure-aggregation.md.

    Attributes:
        cohort: Clients.
        lost: Of them, before their message.
        degree: Neighbours of a client.
        committee: Members who hold shares.
        coordinates: Of the sum.
    """

    cohort: int
    lost: int
    degree: int
    committee: int
    coordinates: int

    @cached_property
    def terms(self) -> SumTerms:
        """Terms of the sum."""
        return SumTerms(
            run=1,
            number=1,
            purpose="train",
            directory="00" * 32,
            content="00" * 32,
            cohort=tuple(range(self.cohort)),
            committee=tuple(range(self.committee)),
            threshold=-(-4 * self.committee // 5),
            least=self.cohort - self.lost,
            degree=self.degree,
            colluding=1,
            cross_check=True,
            segments=(Segment("updates", self.coordinates, 1.0, 1.0, 1.0),),
            bits=_BITS,
            noise_scale=2.0,
        )

    def message(self, position: int) -> MaskedMessage:
        """A client's message."""
        part = Participation(self.terms, position, _root_of(position))
        return part.message(np.zeros(self.coordinates, np.int64))

    @cached_property
    def folded(self) -> OpenSum:
        """The sum with all replies, before members were asked."""
        opening = OpenSum(self.terms)
        for position in range(self.lost, self.cohort):
            opening.fold(position, self.message(position))
        opening.require_openable()
        return opening

    @cached_property
    def answers(self) -> dict[int, Opened]:
        """Answers of as many members as are needed."""
        opening = copy.deepcopy(self.folded)
        answers = {}
        for member in self.terms.committee[-self.terms.threshold :]:
            shares, unreadable = open_bundles(
                self.terms, member, *opening.question(member), _root_of(member)
            )
            answers[member] = Opened(shares, unreadable)
        return answers


def _root_of(position: int) -> Callable[[int], bytes]:
    """A stand-in for a place's X25519 secrets, 61 us each at the first sum."""
    return lambda other: prf(b"roots", "root", *sorted((position, other)))


def release(size: Size) -> None:
    """Put seeds together and take the masks away, ours."""
    opening = copy.deepcopy(size.folded)
    for member, opened in size.answers.items():
        opening.answer(member, opened)
    assert not opening.release().any()


@cache
def flower_keys() -> tuple[Any, Any, bytes]:
    """Halves of two Flower key pairs, and the secret one's bytes."""
    (mine, _), (_, theirs) = generate_key_pairs(), generate_key_pairs()
    return mine, theirs, private_key_to_bytes(mine)


def flower_client(size: Size, neighbours: int) -> list[bytes]:
    """What a client of Flower's SecAgg+ uploads, after its shares were made."""
    mine, theirs, secret = flower_keys()
    key = generate_shared_key(mine, theirs)
    threshold = -(-4 * (neighbours + 1) // 5)
    seed = os.urandom(32)
    for shared in (seed, secret):
        for share in create_shares(shared, threshold, neighbours + 1)[1:]:
            encrypt(key, share)
    values = quantize([np.zeros(size.coordinates)], 8.0, _TARGET)
    shapes: list[tuple[int, ...]] = [(size.coordinates,)]
    values = parameters_addition(values, pseudo_rand_gen(seed, _MOD, shapes))
    for _ in range(neighbours):
        pair = generate_shared_key(mine, theirs)
        values = parameters_addition(values, pseudo_rand_gen(pair, _MOD, shapes))
    return [ndarray_to_bytes(array) for array in parameters_mod(values, _MOD)]


def flower_release(size: Size, neighbours: int) -> None:
    """Put secrets together and take the masks away, Flower's."""
    mine, theirs, secret = flower_keys()
    threshold = -(-4 * (neighbours + 1) // 5)
    shapes: list[tuple[int, ...]] = [(size.coordinates,)]
    of_seed = create_shares(bytes(32), threshold, neighbours + 1)[:threshold]
    of_key = create_shares(secret, threshold, neighbours + 1)[:threshold]
    total = [np.zeros(size.coordinates, np.int64)]
    for _ in range(size.cohort - size.lost):
        seed = combine_shares(of_seed)
        total = parameters_subtraction(total, pseudo_rand_gen(seed, _MOD, shapes))
    for _ in range(size.lost):
        combine_shares(of_key)
        for _ in range(neighbours):
            pair = generate_shared_key(mine, theirs)
            total = parameters_addition(total, pseudo_rand_gen(pair, _MOD, shapes))
    parameters_mod(total, _MOD)


def cases_of(size: Size) -> list[Case]:
    """Compare a client's message and the server's release, both sides with as many neighbours."""
    n, near = size.cohort, min(size.degree, size.cohort - 1)
    what = f"{size.coordinates} x {_BITS} bits"
    return [
        Case(
            name=f"client's message, {n} clients, {near} neighbours, {what}",
            peer="flwr SecAgg+, 32 bits",
            ours=lambda: size.message(0),
            theirs=lambda: flower_client(size, near),
        ),
        Case(
            name=f"server's release, {n} clients, {size.lost} lost, {what}",
            peer="flwr SecAgg+, 32 bits",
            ours=lambda: release(size),
            theirs=lambda: flower_release(size, near),
        ),
    ]


def wire(size: Size) -> dict[str, int]:
    """Bytes a client sends up, ours and Flower's without its shares."""
    message = size.message(0)
    bundles = sum(map(len, message.bundles)) + len(message.commitments)
    flower = len(ndarray_to_bytes(np.zeros(size.coordinates, np.int64)))
    return {"masked": len(message.masked), "bundles": bundles, "flwr masked": flower}


SIZES = {
    6: Size(cohort=6, lost=1, degree=6, committee=20, coordinates=1_000_000),
    10: Size(cohort=10, lost=1, degree=10, committee=10, coordinates=1_000_000),
    100: Size(cohort=100, lost=30, degree=20, committee=40, coordinates=1_000_000),
    1000: Size(cohort=1000, lost=100, degree=40, committee=60, coordinates=100_000),
}


def main() -> None:
    """Time the requested cohorts, and print JSON or lines."""
    parser = argparse.ArgumentParser(description="Secure sums beside Flower's SecAgg+")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    parser.add_argument("--repeats", type=int, default=5, help="timings a side (default: 5)")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[6, 10, 100], choices=list(SIZES))
    options = parser.parse_args()
    sizes = [SIZES[cohort] for cohort in options.cohorts]
    timed = compare([case for size in sizes for case in cases_of(size)], options.repeats)
    sent = {f"{size.cohort} clients": wire(size) for size in sizes}
    if options.json:
        print(json.dumps({"timings": timed, "wire_bytes": sent}, indent=2))
        return
    for name, row in timed.items():
        ours, theirs = 1e3 * row["ours_s"], 1e3 * row["peer_s"]
        print(f"{name}: ours {ours:.3g} ms, flwr {theirs:.3g} ms, ratio {row['ratio']:.3g}")
    for cohort, bytes_up in sent.items():
        print(f"bytes up, {cohort}: {bytes_up}")


if __name__ == "__main__":
    main()
