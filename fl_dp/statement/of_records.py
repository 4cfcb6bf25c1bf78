"""Privacy statement of DP-SGD inside clients: the largest epsilon of any client's records."""

from __future__ import annotations

from fl_dp.accounting import EpsilonBounds, NeighboringRelation
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.accounting.second_figure import second_figure
from fl_dp.ledger.training import library_versions
from fl_dp.plan import RecordPlan
from fl_dp.plan.plan import ANOTHER_APP, ITEMS_OF_SEVERAL_RECORDS

from .promise import RecordStatement
from .several_records import epsilon_of_several
from .words import warnings_of

_NEIGHBOURS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "a client has a record or does not",
    NeighboringRelation.ZERO_OUT: (
        "a record contributes, or contributes zero throughout; how many records a client has is "
        "public"
    ),
    NeighboringRelation.REPLACE_ONE: "a record of a client is replaced by any other",
}


def record_statement(
    plan: RecordPlan,
    *,
    participations: int | None,
    num_clients: int,
    secure_randomness: bool = True,
    declared_gradients: str | None = None,
) -> RecordStatement:
    """Return the statement of a plan.

    It is the maximum over clients, and no client says what it has spent: every client's ledger
    refuses what would exceed the budget, and the server knows how often it asked whom.

    Args:
        plan: What clients train by.
        participations: The most that any client was asked to take part in this run; None: that is
            not known, and the budget is what holds.
        num_clients: Clients of the roster.
        secure_randomness: Whether noise and coins came from the operating system's randomness.
        declared_gradients: `hooks` or `ghost` where a run asks for them; see `RecordStatement`.
    """
    at_budget = EpsilonBounds(filter=plan.budget.epsilon)
    promised = spent = at_budget
    most = None  # as long as nobody knows, the ledgers bound one record, and no group of them
    if participations is not None:
        # Stopping earlier may depend on what was released, so the planned rounds are quoted.
        # Where that is more than the budget, the ledgers stop them.
        budget, most = plan.budget.epsilon, max(participations, plan.participations)
        promised = plan.epsilon(most).within(budget)
        spent = EpsilonBounds(naive=0.0)
        if participations:
            spent = plan.epsilon(participations).within(budget)
    not_covered = [
        "clients as a whole: what all records of one client say together (`privacy=central` and "
        "`privacy=local` protect that, alone or with this)",
        "data that lie at two clients: what each releases of a record adds up",
        "what other runs release of the same records: each has a budget of its own, and a node's "
        "owner caps all of them together (`dp-max-epsilon`)",
        "the choice of hyper-parameters, if it was made on the clients' data",
        "rounding of the clipped sums in floating-point numbers",
        "timing, network traffic, and who took part in which round",
        "that a client's training failed as a whole or its process ended, once a Flower run: a "
        "real node contributes nothing from then on, be it for one record or for a restart",
        "a client's own software, if it is not the one that was agreed on",
        ITEMS_OF_SEVERAL_RECORDS,
        ANOTHER_APP,
    ]
    second = second_figure(
        {} if most is None else {plan.event: most * plan.steps},
        plan.budget.delta,
        ours=promised,
        neighboring_relation=plan.neighboring_relation,
    )
    not_covered[:0] = warnings_of(second)
    if declared_gradients is not None:
        not_covered.insert(
            0,
            "records of a model whose layers have other rows than records: gradients are those of "
            f"rows (`dp_sgd.grad_sample_mode={declared_gradients}`), which was declared, and "
            "compared with gradients of single records on made-up records alone",
        )
    if not secure_randomness:
        not_covered.insert(
            0,
            "WHOEVER CAN PREDICT TORCH'S GENERATOR: noise and coins came from it "
            "(`dp_sgd.secure_randomness=false`), which is for comparisons only",
        )
    return RecordStatement(
        delta=plan.budget.delta,
        epsilon=promised.by_name,
        quoted=promised.best_name,
        epsilon_so_far=spent.by_name,
        budget=plan.budget,
        unit="one record of one client, over the whole training",
        neighboring_relation=plan.neighboring_relation,
        neighbours=_NEIGHBOURS[plan.neighboring_relation],
        adversary=(
            "sees every model that each client sends, the server included, and knows all other "
            "records"
        ),
        trusted="each client's own software, with its records, its noise and its ledger",
        mechanism=(
            f"DP-SGD at each client: Gaussian noise on the sum of the clipped gradients of a "
            f"Poisson sample of its records, {plan.steps} steps a round"
        ),
        composition=(
            "the largest epsilon of any client, not their sum: records of different clients are "
            "different records; a client whose ledger is spent contributes nothing. A client whose "
            "owner allows less has more noise: its own smaller number stands in its node's ledger"
        ),
        rule=(
            "each client's ledger, which counts this training by itself, and all runs under its "
            "owner's cap: releases of one kind by privacy-loss distributions at "
            f"{DECLARED_SHARE:g} delta, others at Renyi orders that share "
            f"{1 - DECLARED_SHARE:.1g} delta"
        ),
        noise_multiplier=plan.noise_multiplier,
        sampling_rate=plan.sampling_rate,
        clipping_norm=plan.clipping_norm,
        steps=plan.steps,
        participations=participations,
        participations_planned=plan.participations,
        num_clients=num_clients,
        declared_gradients=declared_gradients,
        epsilon_of_several=epsilon_of_several(
            None if most is None else {plan.event: most * plan.steps},
            plan.budget.delta,
            plan.neighboring_relation,
        ),
        second_figure=second,
        insecure=not secure_randomness,
        not_covered=tuple(not_covered),
        versions=library_versions(),
    )
