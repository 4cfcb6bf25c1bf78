"""The sentences of statements, in their order, with slots in braces.

A plan and its law add the sentences for their kind (`fl_dp/plan/`, `accounting/sampling.py`).
"""

from __future__ import annotations

from fl_dp.accounting import NeighboringRelation
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.plan.plan_base import ANOTHER_APP, ITEMS_OF_SEVERAL_RECORDS, ROWS_THAT_ARE_NO_RECORDS

UNITS = {
    "client": "one client's whole contribution over the whole training",
    "person": "one person with all of their records at one client, over the whole training",
    "record": "one record of one client, over the whole training",
}

NEIGHBOURS = {
    "client": {
        NeighboringRelation.ADD_OR_REMOVE_ONE: "a client is in the population or it is not",
        NeighboringRelation.ZERO_OUT: (
            "a client of the public roster contributes, or contributes zero throughout"
        ),
        NeighboringRelation.REPLACE_ONE: "a client's data is replaced by any other data",
    },
    "person": {
        NeighboringRelation.ADD_OR_REMOVE_ONE: "a client has a person's records or does not",
        NeighboringRelation.ZERO_OUT: (
            "a person contributes with all of their records, or contributes zero throughout"
        ),
        NeighboringRelation.REPLACE_ONE: (
            "all records of one person at a client are replaced by any others"
        ),
    },
    "record": {
        NeighboringRelation.ADD_OR_REMOVE_ONE: "a client has a record or does not",
        NeighboringRelation.ZERO_OUT: "a record contributes, or contributes zero throughout",
        NeighboringRelation.REPLACE_ONE: "one record of a client is replaced by any other",
    },
}

NUMBER_IS_PUBLIC = "; how many {units} a client has is public"
"""Goes on from zero-out neighbours inside clients, which divide by that number."""

EVENTS = {
    "gaussian": "Gaussian, noise multiplier {noise_multiplier:.5g}",
    "poisson-gaussian": (
        "Gaussian, noise multiplier {noise_multiplier:.5g}, Poisson sample at rate "
        "{sampling_rate:g}"
    ),
    "truncated-poisson-gaussian": (
        "Gaussian, noise multiplier {noise_multiplier:.5g}, Poisson sample at rate "
        "{sampling_rate:g} of {num_units}, cut at {max_cohort}"
    ),
    "fixed-size-gaussian": (
        "Gaussian, noise multiplier {noise_multiplier:.5g}, {cohort} of {num_units} units"
    ),
    "laplace": "Laplace, scale {noise_multiplier:.5g} of the L1 sensitivity",
    "exponential": "exponential mechanism, {draws} drawn at bounded range {epsilon:.5g}",
    "zcdp": "{rho:.5g}-zCDP",
    "random-stopping": (
        "the best of a secret random number of trainings, {mean_runs:g} expected (truncated "
        "negative binomial of shape {shape:g}), each of {run}"
    ),
}
"""Descriptions of releases, by the kind of their event."""

ACCOUNTANTS = {
    "pld": "privacy-loss distributions",
    "rdp": "Renyi DP",
    "gdp": "Gaussian DP, exact without sampling",
    "zcdp": "zero-concentrated DP",
    "gumbel": "privacy-loss distributions of all noisy scores",
    "filter": "what the gate before each release guarantees",
    "naive": "basic composition, for comparison",
}

LARGE_DELTA = (
    "Delta {delta} is large: with that probability epsilon may not hold. It is fine for trying "
    "out; for real data choose 1e-5 or less."
)
"""Above the table of a statement whose delta `is_large_delta`."""

_COMPUTED = (
    "dp-accounting computes epsilon {theirs} for the same releases ({how}), beside our {ours}: "
)
_BELIEVED = " Both believe that each release is charged as the right event."
SECOND_FIGURE = {
    "none": "There is no second figure of dp-accounting: {how}.",
    "above": (
        f"{_COMPUTED}{{percent:.1f}} % MORE, which discretisation does not explain.{_BELIEVED}"
    ),
    "below": f"{_COMPUTED}ours is the more cautious one, by {{percent:.1f}} % of it.{_BELIEVED}",
    "equal": f"{_COMPUTED}they agree within {{percent:g}} %.{_BELIEVED}",
}

_FIGURE = (
    "THE NUMBER ITSELF: dp-accounting computes more for the same releases. Go by epsilon {figure} "
    "until the difference is explained"
)
_CHOICE = "the choice of hyper-parameters, if it was made on the clients' data"

NOT_COVERED_OF_CLIENTS = {
    "seed": (
        "ANYTHING AGAINST WHO KNOWS THE SEED: noise and coins came from an insecure source "
        "(`insecure_seed`), which is for tests and simulations only"
    ),
    "figure": _FIGURE,
    "choice": _CHOICE,
    "accuracy": "accuracy and loss on the test set, whose records have to be public",
    "traffic": "operator logs, timing and network traffic, which show who took part",
    "liars": "a malicious server, or clients that send something else than they should",
    "runs": "what other ledgers have spent on the same clients: it adds to this account's total",
    "best of many": (
        "anything against who learns of a training that was not kept, or how many there were: "
        "the server is trusted to hide both, and nodes that took part saw each model"
    ),
    "so far": (
        "what was spent so far (`epsilon_so_far`) as a promise: it would hold only if nothing "
        "that was released had a part in stopping there"
    ),
    "coins": (
        "clients of one process that share random numbers: a generator that a module, a data set "
        "or another framework owns, and apps in Flower's own workers without `coins_mod`"
    ),
    "items": ITEMS_OF_SEVERAL_RECORDS,
    "rows": ROWS_THAT_ARE_NO_RECORDS,
}
"""What no promise to clients covers, the gravest first; code leaves out those that do not hold."""

NOT_COVERED_OF_RECORDS = {
    "generator": (
        "WHOEVER CAN PREDICT TORCH'S GENERATOR: noise and coins came from it "
        "(`secure_randomness=False`), which is for comparisons only"
    ),
    "rows": (
        "records of a model whose layers have other rows than records: gradients are those of "
        "rows (`grad_sample_mode={rows}`), which was declared, and compared with gradients "
        "of single records on made-up records alone"
    ),
    "figure": _FIGURE,
    "clients": (
        "clients as a whole: what all {units} of one client say together (a `CentralPlan` or "
        "a `LocalPlan` protects that, alone or with this)"
    ),
    "two clients": "data that lie at two clients: what each releases of a {unit} adds up",
    "runs": (
        "what other runs release of the same {units}: each has a budget of its own, and a node's "
        "owner caps all of them together (`dp-max-epsilon`)"
    ),
    "choice": _CHOICE,
    "rounding": "rounding of the clipped sums in floating-point numbers",
    "traffic": "timing, network traffic, and who took part in which round",
    "failure": (
        "that a client's training failed as a whole or its process ended, once a Flower run: a "
        "real node contributes nothing from then on, be it for one record or for a restart"
    ),
    "software": "a client's own software, if it is not the one that was agreed on",
    "items": ITEMS_OF_SEVERAL_RECORDS,
    "rows of an app": ROWS_THAT_ARE_NO_RECORDS,
    "app": ANOTHER_APP,
}
"""The same of the promise to records inside clients."""

MEAN_OF_A_PERSON = "; a person's gradient is the mean of those of their records, clipped once"
"""Goes on from a mechanism whose units are persons."""

PROMISE_TO_RECORDS = {
    "adversary": (
        "sees every model that each client sends, the server included, and knows all other {units}"
    ),
    "trusted": "each client's own software, with its records, its noise and its ledger",
    "mechanism": (
        "DP-SGD at each client: Gaussian noise on the sum of the clipped gradients of a Poisson "
        "sample of its {units}, {steps} steps a round"
    ),
    "composition": (
        "the largest epsilon of any client, not their sum: {units} of different clients are "
        "different {units}; a client whose ledger is spent contributes nothing. A client whose "
        "owner allows less has more noise: its own smaller number stands in its node's ledger"
    ),
    "rule": (
        "each client's ledger, which counts this training by itself, and all runs under its "
        "owner's cap: releases of one kind by privacy-loss distributions at "
        f"{DECLARED_SHARE:g} delta, others at Renyi orders that share {1 - DECLARED_SHARE:.1g} "
        "delta"
    ),
}

TRUSTED_NAMED_APP = (
    "one app that each site's owner names by its bundle's SHA-256, with its configuration and its "
    "packages; and each site's own gate, which admits no other and keeps the ledger"
)
"""Trusted parties of a promise to records where nodes' gates admit one app."""
