"""Cost of a secure sum over very many nodes: set-up and one sum, all in one process.

Every node is real but for its messages, which are only measured. Timed are nodes that have nothing
in a cache, as a process of their own has; the median of a few. The others share what is public.

    python benchmarks/secagg_scale.py [--json] [--nodes 1000] [--size 1000] [--whole]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_dp.accounting.shared_noise import usual_colluding
from fl_dp.mechanisms import Segment
from fl_dp.secagg import Directory, Excerpt, Identity, OpenSum, Roster, SecureNode, SQLiteStore
from fl_dp.secagg import directory as directories
from fl_dp.secagg import node as nodes_module
from fl_dp.secagg.excerpt import Near, directory_from_json, near_of
from fl_dp.secagg.roster import Member
from fl_dp.secagg.terms import SumTerms

_RUN, _CONTENT, _TIMED = 7, "ab" * 32, 5
_DEGREE, _COMMITTEE = 40, 60


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that some work takes, with no public text read before, and its result."""
    for cached in (directories._check_keys, nodes_module._terms_of, nodes_module._directory_of):
        cached.cache_clear()
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def measure(count: int, size: int, *, whole: bool) -> dict[str, Any]:
    """Return seconds and bytes of one run of `count` nodes.

    Args:
        count: Nodes.
        size: Coordinates of the sum.
        whole: Whether the nodes that are timed get the whole directory.
    """
    identities = [Identity.generate() for _ in range(count)]
    lines = (Member(name=f"node-{at}", identity=e.public) for at, e in enumerate(identities))
    roster = Roster(federation="scale", members=tuple(lines))
    of = {
        each.public: SecureNode(each, SQLiteStore(None), name=f"node-{at}", roster=roster)
        for at, each in enumerate(identities)
    }
    entries = [node.entry(_RUN) for node in of.values()]
    server_first, directory = timed(lambda: Directory.first(_RUN, entries, roster_hash=roster.hash))
    at = [of[entry.identity] for entry in directory.entries]
    committee = directory.committee(_COMMITTEE)
    told = directory.to_json()
    # Set-up: members check everything, and vouch for it.
    member_check, _ = timed(lambda: at[committee[0]].accept(directory_from_json(told)))
    vouchers = {}
    for place in committee:
        at[place].accept(directory)
        vouchers[place] = at[place].vouch(directory)
    excerpt = Excerpt.of(directory, committee, vouchers)
    sent = told if whole else excerpt.to_json()
    others = [place for place in range(count) if place not in committee]
    sampled = [place for place in others if place % 20][:_TIMED]  # the twentieth of each are lost
    checks = [
        timed(lambda node=at[place]: node.accept(directory_from_json(sent)))[0] for place in sampled
    ]
    for place in set(others) - set(sampled):
        at[place].accept(excerpt)
    # The sum.
    terms = SumTerms(
        run=_RUN,
        number=1,
        purpose="train",
        directory=directory.hash.hex(),
        content=_CONTENT,
        cohort=tuple(range(count)),
        committee=committee,
        threshold=-(-4 * len(committee) // 5),
        least=-(-9 * count // 10),
        degree=_DEGREE,
        colluding=usual_colluding(count),
        cross_check=False,
        segments=(Segment("updates", size, 1.0, 1.0, 1.0),),
        bits=16,
        noise_scale=2.0,
    )
    text, values = terms.to_json(), np.ones(size, np.int64)

    def message(place: int, near: Near | None) -> Any:
        part = at[place].begin(text, content=_CONTENT, purpose="train", near=near)
        return part.message(values)

    replying = [place for place in range(count) if place % 20]
    opening, masking, server = OpenSum(terms, directory), [], 0.0
    up = down = 0
    for place in replying:
        began = time.perf_counter()
        none = place in committee or (whole and place in sampled)
        near = None if none else near_of(directory, place, terms.neighbours[place])
        server += time.perf_counter() - began
        if place in sampled:
            seconds, reply = timed(lambda place=place, near=near: message(place, near))
            masking.append(seconds)
            up = len(reply.masked) + sum(map(len, reply.bundles)) + len(reply.commitments)
            down = len(text) + (0 if near is None else len(near.keys))
        else:
            reply = message(place, near)
        began = time.perf_counter()
        opening.fold(place, reply)
        server += time.perf_counter() - began
    opening.require_openable()
    opens = []
    for member in committee[: terms.threshold]:
        began = time.perf_counter()
        question = opening.question(member)
        server += time.perf_counter() - began
        asked = sum(
            len(b) + len(label)
            for b, label in zip(question.bundles.values(), question.labels.values(), strict=True)
        )
        if len(opens) < _TIMED:
            seconds, answer = timed(lambda m=member, q=question: at[m].open(text, *q))
            opens.append(seconds)
        else:
            answer = at[member].open(text, *question)
        opening.answer(member, answer)
    began = time.perf_counter()
    total = opening.release()
    server += time.perf_counter() - began
    assert (total == len(replying)).all()
    receipting, receipt = timed(lambda: opening.receipt_for(sampled[0]).to_json())
    return {
        "nodes": count,
        "size": size,
        "directory": "whole" if whole else "excerpt",
        "set_up_bytes_down": len(sent),
        "set_up_seconds": statistics.median(checks),
        "sum_bytes_down": down,
        "sum_bytes_up": up,
        "receipt_bytes": len(receipt),
        "server_receipts_seconds": receipting * count,
        "sum_seconds": statistics.median(masking),
        "member_set_up_bytes": len(told),
        "member_set_up_seconds": member_check,
        "member_bytes": len(text) + asked,
        "member_seconds": statistics.median(opens),
        "server_set_up_seconds": server_first,
        "server_sum_seconds": server,
        "server_set_up_bytes": len(told) * len(committee) + len(sent) * len(others),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--whole", action="store_true", help="no excerpts")
    given = parser.parse_args()
    found = measure(given.nodes, given.size, whole=given.whole)
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24}{value:.4g}" if isinstance(value, float) else f"{name:24}{value}")


if __name__ == "__main__":
    main()
