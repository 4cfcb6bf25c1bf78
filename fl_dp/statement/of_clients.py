"""The privacy statement of a run: what is promised, to whom, and what it rests on."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from fl_dp.accounting import (
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyEvent,
    TruncatedPoissonGaussianEvent,
    ZcdpEvent,
    event_from_dict,
    event_to_dict,
)
from fl_dp.ledger import PrivacyLedger
from fl_dp.ledger.training import library_versions
from fl_dp.mechanisms import clipping_to_dict
from fl_dp.plan import PrivacyPlan

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "a client is in the population or it is not",
    NeighboringRelation.ZERO_OUT: (
        "a client of the public roster contributes, or contributes zero throughout"
    ),
    NeighboringRelation.REPLACE_ONE: "a client's data is replaced by any other data",
}
_UNITS = {
    "client": "one client's whole contribution over the whole training",
    "record": "one record of one client, over the whole training",
}
_ACCOUNTANTS = {
    "pld": "privacy-loss distributions",
    "rdp": "Renyi DP",
    "gdp": "Gaussian DP, exact without sampling",
    "zcdp": "zero-concentrated DP",
    "gumbel": "privacy-loss distributions of all noisy scores",
    "filter": "what the privacy filter guarantees, whatever was chosen on the way",
    "naive": "basic composition, for comparison",
}


def privacy_statement(ledger: PrivacyLedger) -> dict[str, Any]:
    """Return the statement as plain JSON values, computed from the ledger's records alone.

    With noise at the clients it has one number, which holds against the server. That the noise of
    all clients adds up against who sees the models only is no second one: each message is rounded
    to the model's floating-point type, and the sum of rounded Gaussians is as private as no known
    Gaussian. The last bits of a sum tell in which binade its terms lie, however large the noise.
    """
    plan = ledger.plan
    spent, promised = ledger.epsilon(), ledger.promise()
    not_covered = [
        "the choice of hyper-parameters, if it was made on the clients' data",
        "accuracy on the public test set, which no client's data enters",
        "operator logs, timing and network traffic, which show who took part",
        "a malicious server, or clients that send something else than they should",
        "the sum of this run and others on the same clients: their budgets add up",
    ]
    if ledger.insecure:
        not_covered.insert(
            0,
            "ANYTHING AGAINST WHO KNOWS THE SEED: noise and coins came from an insecure source "
            "(`insecure_seed`), which is for tests and simulations only",
        )
    if promised != spent:
        not_covered.append(
            "what was spent so far (`epsilon_so_far`) as a promise: it would hold only if nothing "
            "that was released had a part in stopping there"
        )
    not_covered += plan.noise.not_covered
    return {
        "delta": plan.budget.delta,
        "epsilon": promised.by_name,
        "quoted": promised.best_name,
        "epsilon_so_far": spent.by_name,
        "budget": {"epsilon": plan.budget.epsilon, "delta": plan.budget.delta},
        "unit": _UNITS[plan.unit],
        "neighboring_relation": str(plan.neighboring_relation),
        "adversary": plan.noise.adversary(unit=plan.unit, sampling=plan.sampling),
        "trusted": plan.noise.trusted(plan.hosting),
        "mechanism": plan.noise.mechanism(plan.release)
        + (", and the other releases that are listed" if ledger.other_releases_spent else ""),
        "sampling": (
            plan.sampling.describe()
            if plan.participation_cap is None
            else f"{plan.sampling.describe().partition(':')[0]}: {plan.participation_cap} rounds "
            "are charged in full, a client's most"
        ),
        "rule": ledger.rule,
        "sampling_rate": plan.sampling_rate,
        "rounds": ledger.rounds_spent,
        "rounds_planned": plan.rounds,
        "rounds_committed": ledger.rounds_committed,
        "noise_multipliers": list(ledger.noise_multipliers),
        "participation_cap": plan.participation_cap,
        "metrics": [metric.name for metric in plan.release.metrics],
        "releases": [{**event_to_dict(event), "count": count} for event, count in ledger.history],
        "clipping": clipping_to_dict(plan.release.clipping),
        "clipping_norm": plan.clipping_norm,
        "denominator": plan.denominator,
        "capped_denominator": plan.release.capped_denominator,
        "num_clients": plan.num_clients,
        "randomness": sorted(ledger.randomness),
        "insecure": ledger.insecure,
        "not_covered": not_covered,
        "versions": library_versions(),
        "ledger": ledger.name,
        "ledger_records": ledger.anchor.records,
        "ledger_hash": ledger.anchor.hash,
    }


def statement_markdown(statement: dict[str, Any]) -> str:
    """Return the statement as a page that a person can read and sign."""
    relation = NeighboringRelation(statement["neighboring_relation"])
    lines = ["# Privacy statement", ""]
    if statement["insecure"]:
        lines += [f"> **No privacy at all.** {statement['not_covered'][0]}.", ""]
    cap = statement["participation_cap"]
    rows = [
        promise_row(statement, nothing="" if statement["releases"] else "nothing was released"),
        *_so_far(statement),
        ("unit", statement["unit"]),
        ("neighbours", f"{relation}: {_neighbours(statement, relation)}"),
        ("adversary", statement["adversary"]),
        ("trusted", statement["trusted"]),
        ("mechanism", statement["mechanism"]),
        ("sampling", statement["sampling"]),
        ("rule", statement["rule"]),
        ("clipping norm", _norm(statement)),
        ("clients", f"{statement['num_clients']}, {_denominator(statement)}"),
        (
            "rounds",
            f"{statement['rounds']} charged and {statement['rounds_committed']} released, "
            f"of {statement['rounds_planned']} planned"
            + (f"; at most {cap} for one client" if cap is not None else ""),
        ),
        ("randomness", "; ".join(statement["randomness"])),
    ]
    lines += ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows), ""]
    lines += ["## What was released", ""]
    lines += [f"- {_describe(each)}" for each in statement["releases"]] or ["- nothing"]
    lines += ["", *closing_sections(statement)]
    versions = ", ".join(f"{name} {number}" for name, number in statement["versions"].items())
    lines += [
        f"Computed from the {statement['ledger_records']} records of the ledger that end in "
        f"`{statement['ledger_hash']}`, with {versions}.",
        "",
    ]
    return "\n".join(lines)


def promise_row(statement: dict[str, Any], *, nothing: str = "") -> tuple[str, str]:
    """Return the row that says what is promised, rounded up; `nothing` takes the number's place."""
    quoted, epsilon = statement["quoted"], statement["epsilon"]
    promise = nothing or "no finite epsilon is known"
    if not nothing and quoted in epsilon:
        delta = _ceiling(statement["delta"], 3)
        promise = f"epsilon {rounded_up(epsilon[quoted])} at delta {delta}"
    budget = rounded_up(statement["budget"]["epsilon"])
    return "promise", f"**{promise}**, of a budget of {budget}"


def closing_sections(statement: dict[str, Any]) -> list[str]:
    """Return the lines of what every page ends with: each epsilon, and what is not covered."""
    quoted = statement["quoted"]
    lines = ["## Epsilon by each accountant", "", "| accountant | epsilon |", "|---|---|"]
    lines += [
        f"| {_ACCOUNTANTS[name]}{' (quoted)' if name == quoted else ''} | {rounded_up(value)} |"
        for name, value in statement["epsilon"].items()
    ]
    lines += ["", "Each is an upper bound on its own; the smallest is quoted.", ""]
    lines += ["## What is not covered", "", *(f"- {text}" for text in statement["not_covered"]), ""]
    return lines


def promise_in_words(plan: PrivacyPlan) -> dict[str, str]:
    """Return what a plan promises to whom: its unit, its neighbours, the adversary, the trusted."""
    unit, relation = _UNITS[plan.unit], plan.neighboring_relation
    return {
        "unit": unit,
        "neighbours": f"{relation}: {_neighbours({'unit': unit}, relation)}",
        "adversary": plan.noise.adversary(unit=plan.unit, sampling=plan.sampling),
        "trusted": plan.noise.trusted(plan.hosting),
    }


def _so_far(statement: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the row that tells what was spent, where that is less than what is promised."""
    spent = statement["epsilon_so_far"]
    if not statement["releases"] or spent == statement["epsilon"] or not spent:
        return []
    best = rounded_up(min(spent.values()))
    return [("spent so far", f"{best}; a promise only if no release had a part in stopping there")]


def describe_event(event: PrivacyEvent) -> str:
    """Return one line that tells a person what was released."""
    match event:
        case GaussianEvent(noise_multiplier=z):
            return f"Gaussian, noise multiplier {z:.5g}"
        case PoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate):
            return f"Gaussian, noise multiplier {z:.5g}, Poisson sample at rate {rate:g}"
        case TruncatedPoissonGaussianEvent():
            return (
                f"Gaussian, noise multiplier {event.noise_multiplier:.5g}, Poisson sample at rate "
                f"{event.sampling_rate:g} of {event.num_units}, cut at {event.max_cohort}"
            )
        case FixedSizeGaussianEvent():
            return (
                f"Gaussian, noise multiplier {event.noise_multiplier:.5g}, {event.cohort} of "
                f"{event.num_units} units"
            )
        case LaplaceEvent(noise_multiplier=scale):
            return f"Laplace, scale {scale:.5g} of the L1 sensitivity"
        case ExponentialEvent(epsilon=epsilon, draws=draws):
            return f"exponential mechanism, {draws} drawn at bounded range {epsilon:.5g}"
        case ZcdpEvent(rho=rho):
            return f"{rho:.5g}-zCDP"


def _neighbours(statement: dict[str, Any], relation: NeighboringRelation) -> str:
    if statement["unit"] == _UNITS["record"]:
        return "one record of a client is replaced by any other"
    return _RELATIONS[relation]


def _denominator(statement: dict[str, Any]) -> str:
    if statement["capped_denominator"]:
        return f"divided by what the cohort weighs, at least {statement['denominator']:g}"
    return f"public denominator {statement['denominator']:g}"


def _norm(statement: dict[str, Any]) -> str:
    norm = f"{statement['clipping_norm']:g}"
    return f"{norm} at first" if statement["clipping"]["kind"] == "adaptive" else norm


def _describe(release: dict[str, Any]) -> str:
    return f"{release['count']} x {describe_event(event_from_dict(release))}"


def rounded_up(epsilon: float) -> str:
    """Write an upper bound so that what is printed is one too, to four decimals."""
    if epsilon >= 1e6:
        return _ceiling(epsilon, 4)
    return str(Decimal(repr(float(epsilon))).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def _ceiling(number: float, digits: int) -> str:
    """Write a number rounded up to so many significant digits."""
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(number)))
    return f"{float(rounded):.{digits}g}"
