"""Cost of a secure sum over very many nodes: set-up and one sum, all in one process.

Every node is real except its messages, which are only measured. A few nodes with empty caches, as
in a process of their own, are timed in CPU seconds; the median counts. The others share what is
public. With `--set-up` only these few clients mask, and nobody opens.

    python benchmarks/secagg_scale.py [--json] [--nodes 1000] [--size 1000] [--set-up]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fl_dp.accounting.shared_noise import usual_colluding
from fl_dp.mechanisms import Segment
from fl_dp.secagg import Directory, Identity, OpenSum, Roster, SecureNode, SQLiteStore
from fl_dp.secagg import directory as directories
from fl_dp.secagg import sum_node as nodes_module
from fl_dp.secagg.directory import Entry
from fl_dp.secagg.key_pairs import RunKey
from fl_dp.secagg.roster import Member
from fl_dp.secagg.terms import SumTerms

_RUN, _CONTENT, _TIMED = 7, "ab" * 32, 5
_DEGREE, _COMMITTEE = 40, 60


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of some work, with no public text read before, and its result."""
    for cached in (
        directories._check_keys,
        nodes_module._terms_of,
        nodes_module._directory_of,
    ):
        cached.cache_clear()
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def accept(node: SecureNode, text: str) -> bytes:
    """Let a node read and check a directory."""
    return node.accept(Directory.from_json(text))


def measure(count: int, size: int, *, all_mask: bool) -> dict[str, Any]:
    """Seconds and bytes of one run of `count` nodes; the sum has `size` coordinates.

    With `all_mask` all send their message, and the sum is opened.
    """
    identities = [Identity.generate() for _ in range(count)]
    lines = (Member(name=f"node-{at}", identity=e.public) for at, e in enumerate(identities))
    roster = Roster(federation="scale", members=tuple(lines))
    of: dict[bytes, SecureNode] = {}

    def node_of(at: int) -> SecureNode:
        identity = identities[at]
        made = SecureNode(identity, SQLiteStore(None), name=f"node-{at}", roster=roster)
        of[identity.public] = made
        return made

    names = {identity.public: at for at, identity in enumerate(identities)}
    # A node of its own only for those who do something.
    keys = [None if all_mask else RunKey.generate() for _ in identities]
    entries = [
        node_of(at).entry(_RUN)
        if key is None
        else Entry.make(_RUN, 0, f"node-{at}", identities[at], key)
        for at, key in enumerate(keys)
    ]
    server_first, directory = timed(
        partial(Directory.first, _RUN, entries, roster_hash=roster.hash)
    )
    at = {}

    def serve(position: int) -> SecureNode:
        entry = directory.entries[position]
        if position not in at:
            number = names[entry.identity]
            made = of.get(entry.identity) or node_of(number)
            if (key := keys[number]) is not None:
                made.store.put(_RUN, "run-key", key.secret)
            at[position] = made
        return at[position]

    committee = directory.committee(_COMMITTEE)
    told = directory.to_json()
    for position in committee:
        serve(position).accept(directory)
    others = [position for position in range(count) if position not in committee]
    sampled = [position for position in others if position % 20][
        :_TIMED
    ]  # the twentieth of each are lost
    checks = []
    for node in map(serve, sampled):
        checks.append(timed(partial(accept, node, told))[0])
    for position in set(others) - set(sampled) if all_mask else ():
        serve(position).accept(directory)
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

    def message(position: int) -> Any:
        part = serve(position).begin(text, content=_CONTENT, purpose="train")
        return part.message(values)

    replying = [position for position in range(count) if position % 20] if all_mask else sampled
    opening, server = OpenSum(terms, directory), 0.0
    masking: list[float] = []
    up = down = 0
    for position in replying:
        if position in sampled:
            seconds, reply = timed(partial(message, position))
            masking.append(seconds)
            up = len(reply.masked) + sum(map(len, reply.bundles)) + len(reply.commitments)
            down = len(text)
        else:
            reply = message(position)
        began = time.process_time()
        opening.fold(position, reply)
        server += time.process_time() - began
    report = {
        "nodes": count,
        "size": size,
        "set_up_bytes_down": len(told),
        "set_up_seconds": statistics.median(checks),
        "sum_bytes_down": down,
        "sum_bytes_up": up,
        "sum_seconds": statistics.median(masking),
        "server_set_up_seconds": server_first,
        "server_set_up_bytes": len(told) * count,
    }
    if not all_mask:
        return report
    opening.require_openable()
    opens: list[float] = []
    for member in committee[: terms.threshold]:
        began = time.process_time()
        question = opening.question(member)
        server += time.process_time() - began
        asked = sum(
            len(b) + len(label)
            for b, label in zip(question.bundles.values(), question.labels.values(), strict=True)
        )
        if len(opens) < _TIMED:
            seconds, answer = timed(partial(serve(member).open, text, *question))
            opens.append(seconds)
        else:
            answer = serve(member).open(text, *question)
        opening.answer(member, answer)
    began = time.process_time()
    total = opening.release()
    server += time.process_time() - began
    assert (total == len(replying)).all()
    return report | {
        "member_bytes": len(text) + asked,
        "member_seconds": statistics.median(opens),
        "server_sum_seconds": server,
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--set-up", action="store_true", help="no more than a few clients mask")
    given = parser.parse_args()
    report = measure(given.nodes, given.size, all_mask=not given.set_up)
    if given.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:24}{value:.4g}" if isinstance(value, float) else f"{name:24}{value}")


if __name__ == "__main__":
    main()
