"""Exact totals of an evaluation: masked, without noise, and not private.

    note as uncharged -> ask every node -> [masked reply -> fold]* -> the committee opens

Each node is asked by its own configuration (`secagg-exact="evaluate"`), and the sum opens only if
all of them take part.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import ExactShare
from fl_dp.plan import DistributedNoise
from fl_dp.protocol.secure_sum import SUM_KEY
from fl_dp.secagg import Roster as SecureRoster
from fl_dp.statistics import Answer, Evaluation

from .charged_sum import noise_in_shares, opened_sum
from .exchange import asking
from .federation_statistics import evaluation_question
from .modes.node_budget import price_of_a_sum
from .roster import wait_for_roster
from .secure import OneSum, Summed, secure_sums_of

_BITS = 32


def exact_evaluation(
    grid: Grid,
    ledger: PrivacyLedger,
    what: str,
    query: Evaluation,
    *,
    arrays: ArrayRecord,
    config: ConfigRecord | None = None,
    units_per_node: int = 1,
    window: int | None = None,
    timeout: float = 3600.0,
    roster_timeout: float = 60.0,
    secure_roster: SecureRoster | None = None,
) -> Answer:
    """Let every node measure a model on its own data, and release exact means.

    Privacy: NONE for what the totals tell. No message shows a node's own numbers; their sum over
    all nodes is released without noise, and no ledger charges it. The server's ledger and statement
    name it as uncharged. A node whose owner has not written `secagg-exact="evaluate"` refuses, and
    then nothing is opened. So does one that has added to an exact total over other nodes before, in
    whichever run: the difference of the two would be the values of those who are in one alone.

    Args:
        grid: Flower's grid.
        ledger: Of a plan with `DistributedNoise`, opened to write to.
        what: A name for the records, for instance `exact accuracy of round 60`.
        query: The metrics and their ranges.
        arrays: The model.
        config: Sent along with the model.
        units_per_node: Privacy units that a node hosts at most.
        window: How many nodes are under way at once; chosen by the grid when None.
        timeout: Seconds to wait for replies.
        roster_timeout: Seconds to wait for the plan's clients to connect.
        secure_roster: The nodes of secure sums and their identities, as for `DPFedAvg`.

    Raises:
        RehearsalFailed: If a node has no keys; nothing was released.
        SecureSumFailed: If a node refuses or is lost; nothing was opened.
        RosterIncomplete: If fewer clients connect than the plan declares.
        ValueError: If the plan's noise is not in shares.
    """
    plan = ledger.plan
    sums = secure_sums_of(plan, secure_roster)
    if sums is None or not isinstance(plan.noise, DistributedNoise):
        raise ValueError(
            "exact totals are for secure sums, where no message shows a node's own numbers: plan "
            "with secure_sum=SecureSum(), or release private means with evaluate_federation"
        )
    question = evaluation_question(query, arrays, config, units_per_node=units_per_node)
    nodes = wait_for_roster(
        grid, plan.num_clients, timeout=roster_timeout, units_per_node=units_per_node
    )
    noise = noise_in_shares(ledger, question, nodes)
    # All or nothing: a total of those who agree would tell of those who don't.
    everybody = replace(noise, secure_sum=replace(noise.secure_sum, least=noise.nodes))
    ask = asking(grid, window=window)
    try:
        sums.set_up(nodes, ask)
        sums.require_enough(nodes, noise.nodes)
        number = ledger.note_uncharged(what)
        share = ExactShare.on_finest_grid(
            "evaluation",
            query.dimension,
            largest=float(query.max_records * units_per_node),
            clipping_norm=query.l2_sensitivity,
            nodes=noise.nodes,
            bits=_BITS,
        )
        summed = Summed(purpose=question.kind, share=share, bits=_BITS, units_in_sum=units_per_node)
        one = OneSum(sums, everybody, summed, number=number)
        asked = question.telling({SUM_KEY: json.dumps(asdict(price_of_a_sum(plan)))})
        [total] = opened_sum(one, asked, nodes, ask, timeout=timeout)
    finally:
        sums.forget(ask)
    return Answer(
        estimates=query.estimates(total, 0.0),
        events=(),
        explanation=(
            "exact totals without noise, not private and not charged: the owner of every node "
            "allows them"
        ),
    )
