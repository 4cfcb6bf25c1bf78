"""The privacy statement of a run: what is promised, to whom, and what it rests on."""

from __future__ import annotations

from typing import Any

from .ledger import PrivacyLedger, library_versions


def privacy_statement(ledger: PrivacyLedger) -> dict[str, Any]:
    """Return the statement as plain JSON values, computed from the ledger's records alone."""
    plan = ledger.plan
    spent = ledger.epsilon()
    return {
        "delta": plan.budget.delta,
        "epsilon": {"pld": spent.pld, "rdp": spent.rdp, "naive": spent.naive},
        "budget": {"epsilon": plan.budget.epsilon, "delta": plan.budget.delta},
        "unit": "one client's whole contribution over the whole training",
        "neighboring_relation": str(plan.neighboring_relation),
        "adversary": "sees every released model; does not see who took part in which round",
        "trusted": "the server, with the clients' updates, the coins and the noise",
        "mechanism": "Gaussian on an integer grid, on the sum of L2-clipped updates",
        "sampling": "Poisson: an independent secret coin for each client in each round",
        "sampling_rate": plan.sampling_rate,
        "rounds": ledger.rounds_spent,
        "rounds_planned": plan.rounds,
        "rounds_committed": ledger.rounds_committed,
        "noise_multipliers": [plan.noise_multiplier] * ledger.rounds_spent,
        "clipping_norm": plan.clipping_norm,
        "noise_std_of_the_sum": plan.mechanism.noise_std,
        "denominator": plan.denominator,
        "num_clients": plan.num_clients,
        "not_covered": [
            "the choice of hyper-parameters, if it was made on the clients' data",
            "accuracy on the public test set, which no client's data enters",
            "operator logs, timing and network traffic, which show who took part",
            "a malicious server, or clients that send something else than they should",
            "the sum of this run and others on the same clients: their budgets add up",
        ],
        "versions": library_versions(),
        "ledger_hash": ledger.records[-1].hash,
    }
