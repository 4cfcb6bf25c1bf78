"""One statistic by a secure sum: the server sees no vector, and each node adds noise.

reserve -> ask every node -> [masked reply -> fold]* -> the committee opens -> commit
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_dp.codec import encode_text
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import GaussianMechanism
from fl_dp.plan import DistributedNoise
from fl_dp.protocol.secure_sum_messages import SUM_KEY
from fl_dp.statistics import Answer, NoiseChoice
from fl_dp.statistics.query import SumQuery
from fl_dp.updates import RefusedUpdate

from .message_exchange import Ask, Federation
from .modes.node_budget import price_of_a_sum
from .question import Question
from .rehearsal import require_gates_at_all_or_none
from .run_log import RunLog
from .secure import OneSum, SecureSums, Summed
from .unit_roster import RosterTooLarge


def charged_sum(
    federation: Federation,
    ledger: PrivacyLedger,
    name: str,
    question: Question,
    *,
    nodes: Sequence[int],
    sums: SecureSums,
) -> Answer:
    """Reserve the event of the question's choice, ask, let the committee open the sum, and commit.

    Privacy: `question.choice.events`, for one unit with all its records, zero-out neighbours,
    against the server and the plan's colluding nodes: they see the noisy sum over at least as many
    nodes as the noise supposes, and nothing else that depends on data. A failed node sends noise
    around zero. Only keys are sent before the charge is on disk; a sum that can't be opened stays
    charged.

    All `nodes` are asked.

    Raises:
        ValueError: If nodes can't share the noise of the choice; nobody was asked.
        RehearsalFailed: If an app can't answer, most owners refuse, or too few nodes have keys;
            nothing was charged.
        SecureSumFailed: If the sum can't be opened; it stays charged.
    """
    choice = question.choice
    noise = _noise_in_shares(ledger, nodes)
    mechanism = _shared_mechanism(choice)
    hosting = ledger.plan.hosting
    shared = noise.shared_statistic(mechanism, choice.query.dimension, hosting)
    ask = federation.asking()
    asked = question.with_config({SUM_KEY: encode_text(price_of_a_sum(ledger.plan))})
    answers = asked.rehearse(federation, nodes, trusts_server=False)
    require_gates_at_all_or_none(answers)
    sums.set_up(nodes, ask)
    sums.require_enough(nodes, noise.shares.least)
    (event,) = choice.events
    reservation = ledger.reserve_release(name, event)
    summed = Summed(
        purpose=question.kind,
        share=shared.share,
        bits=shared.bits,
        units_in_sum=hosting.distinct_units,
    )
    one = OneSum(sums, noise, summed, number=reservation.sequence)
    [total] = _opened_sum(federation, one, asked, nodes, ask)
    ledger.commit(reservation)
    assert isinstance(choice.query, SumQuery)  # as its mechanism was checked to fit
    estimates = choice.query.estimates(total, noise.noise_std(shared))
    text = f"{choice.explanation}; {noise.in_shares(shared)}"
    notes = dict.fromkeys(estimate.note for estimate in estimates.values() if estimate.note)
    return Answer(estimates=estimates, events=choice.events, explanation="; ".join([text, *notes]))


def _noise_in_shares(ledger: PrivacyLedger, nodes: Sequence[int]) -> DistributedNoise:
    """The noise of a plan's secure sums, checked against these nodes.

    Raises:
        RosterTooLarge: If more are connected: a lying server could then open smaller sums than the
            noise supposes.
        ValueError: If units are records.
    """
    noise, hosting = ledger.plan.noise, ledger.plan.hosting
    assert noise is not None  # the caller has checked
    if hosting.of_records:
        raise ValueError(
            "one record can change its node's whole answer, by twice what a statistic is charged "
            "for: under a plan whose units are records, ask before the training under a plan of "
            "clients"
        )
    if len(nodes) > noise.nodes:
        raise RosterTooLarge(
            f"{len(nodes)} nodes are connected, and the noise of the plan's secure sums is for "
            f"{noise.nodes}: plan with everybody who is to be asked (num_clients, and no smaller "
            "cohorts)"
        )
    return noise


def _opened_sum(
    federation: Federation, one: OneSum, question: Question, nodes: Sequence[int], ask: Ask
) -> list[NDArray[np.float64]]:
    """Ask all nodes, fold their messages and return the opened sum, one array per segment.

    Raises:
        SecureSumFailed: If it can't be opened.
    """
    log = RunLog()
    one.open(nodes, ask)
    content = one.content_for(question.content)
    timeout = federation.timeout
    messages = [question.to(node, content, timeout=timeout) for node in nodes]
    for reply in question.answers(federation.grid, ask(messages, timeout), nodes, log):
        try:
            one.fold(reply.metadata.src_node_id, reply.content)
        except RefusedUpdate as refused:
            log.warn_once(f"a reply was left out of the sum: {refused}")
    return one.total(ask)


def _shared_mechanism(choice: NoiseChoice) -> GaussianMechanism:
    """The mechanism whose noise nodes share.

    Raises:
        ValueError: If it is not one Gaussian at the query's own sensitivity.
    """
    query = choice.query
    mechanism = choice.mechanisms[0]
    if not isinstance(mechanism, GaussianMechanism):
        names = dict.fromkeys(type(mechanism).__name__ for mechanism in choice.mechanisms)
        kinds = " and ".join(names)
        raise ValueError(
            f"nodes of a secure sum share Gaussian noise alone, got {kinds}: write "
            "choose_noise(..., law='gaussian')"
        )
    if mechanism.clipping_norm != query.l2_sensitivity:
        raise ValueError(
            "nodes of a secure sum clip to the query's own sensitivity: write GaussianMechanism("
            f"clipping_norm={query.l2_sensitivity!r}), got {mechanism.clipping_norm}"
        )
    return mechanism
