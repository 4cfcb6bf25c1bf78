"""Pages that say in Markdown what a statement says, for a person to read and sign."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from fl_dp.promise import (
    Enforcement,
    brief_epsilon,
    ceiling,
    delta_rounded_up,
    is_large_delta,
    is_promise,
    rounded_up,
)

from .promise import NoPromise, PrivacyStatement, Promise, RecordStatement
from .sentences import ACCOUNTANTS, LARGE_DELTA
from .words import (
    describe_event,
    neighbours_in_words,
    second_figure_in_words,
)

Row = tuple[str, str]


@singledispatch
def statement_markdown(statement: PrivacyStatement | RecordStatement | NoPromise) -> str:
    """Return the page of a statement, with that of its records where it promises them something."""
    raise TypeError(f"a {type(statement).__name__} is no statement")


@statement_markdown.register
def _of_nothing(statement: NoPromise) -> str:
    return (
        f"# Privacy statement\n\n{_failed(statement.failure)}"
        "Nothing is promised: this run had `privacy=none`. Its model and its "
        "metrics may show any client's data.\n"
    )


@statement_markdown.register
def _of_clients(statement: PrivacyStatement) -> str:
    relation = statement.neighboring_relation
    sampled = "client" if statement.secure_sums is None else statement.secure_sums.sampled
    rows = [
        _promise(statement, nothing="" if statement.releases else "nothing was released"),
        *_so_far(statement),
        *_several_records(statement),
        ("unit", statement.unit),
        ("neighbours", f"{relation}: {neighbours_in_words(statement.unit, relation)}"),
        ("adversary", statement.adversary),
        ("trusted", statement.trusted),
        *_enforcement(statement),
        *_own_budgets(statement),
        *_secure_sums(statement),
        ("mechanism", statement.mechanism),
        ("sampling", statement.sampling),
        ("rule", statement.rule),
        ("clipping norm", _norm(statement)),
        (f"{sampled}s", f"{statement.num_clients}, public denominator {statement.denominator:g}"),
        ("rounds", _rounds(statement)),
        ("randomness", "; ".join(statement.randomness)),
        *_hyper_parameters(statement),
        *_shared(statement),
        *_public_inputs(statement),
    ]
    released = [f"- {count} x {describe_event(event)}" for event, count in statement.releases]
    versions = ", ".join(f"{name} {number}" for name, number in statement.versions.items())
    lines = [
        *_opening("# Privacy statement", statement, "No privacy at all.", rows),
        "## What was released",
        "",
        *_of_one_client(statement),
        *(released or ["- nothing"]),
        "",
        *_closing(statement),
        f"Computed from the {statement.anchor.entries} entries of the ledger that end in "
        f"`{statement.anchor.hash}`, with {versions}.",
        "",
    ]
    page = "\n".join(lines)
    return page if statement.records is None else f"{page}\n{_of_records(statement.records)}"


def _enforcement(statement: PrivacyStatement | RecordStatement) -> list[Row]:
    """Return the row of what the promise holds by, where nodes were behind gates."""
    if statement.enforcement is None:
        return []
    if statement.enforcement is Enforcement.NAMED_APP:
        return [("holds", f"{statement.enforcement}, which runs no other, as sites say")]
    return [("holds", f"{statement.enforcement}, whatever app the server sends, as sites say")]


def _of_one_client(statement: PrivacyStatement) -> list[str]:
    """Say that a list of releases is shorter than the training, where a cap makes it so."""
    cap = statement.most_rounds
    if cap is None or cap >= statement.rounds:
        return []
    if len(set(statement.noise_multipliers)) > 1:
        return [
            f"Of the {statement.rounds} rounds those of one client cost what {cap} of the least "
            "noise cost, at most, as counted here:",
            "",
        ]
    return [
        f"Of the {statement.rounds} rounds one client is in {cap} at most, as counted here:",
        "",
    ]


def _rounds(statement: PrivacyStatement) -> str:
    if not statement.rounds_planned:  # one release is the best of many trainings
        return "inside what was released, below: how many there were in all stays secret"
    cap = statement.most_rounds
    least = " of the least noise" if len(set(statement.noise_multipliers)) > 1 else ""
    return (
        f"{statement.rounds} charged and {statement.rounds_committed} released, "
        f"of {statement.rounds_planned} planned"
        + (f"; at most {cap}{least} for one client" if cap is not None else "")
    )


@statement_markdown.register
def _of_records(statement: RecordStatement) -> str:
    known, planned = statement.participations, statement.participations_planned
    asked = "an unknown number" if known is None else f"{known} at most"
    spent = min(statement.epsilon_so_far.values(), default=0.0)
    rows = [
        _promise(statement),
        *_several_records(statement),
        ("spent in this run", f"at most {rounded_up(spent)} by any client"),
        ("unit", statement.unit),
        ("neighbours", f"{statement.neighboring_relation}: {statement.neighbours}"),
        ("adversary", statement.adversary),
        ("trusted", statement.trusted),
        *_enforcement(statement),
        ("mechanism", statement.mechanism),
        ("over clients", statement.composition),
        ("rule", statement.rule),
        ("noise multiplier", f"{statement.noise_multiplier:.5g} of each step"),
        ("sampling rate", f"{statement.sampling_rate:g} of a client's records in each step"),
        ("clipping norm", f"{statement.clipping_norm:g}, of one record's gradient"),
        ("rounds of one client", f"{asked} in this run, {planned} planned"),
        ("clients", str(statement.num_clients)),
        *_shared(statement),
        *_public_inputs(statement),
    ]
    title = "# Privacy statement: records"
    lines = _opening(title, statement, "No privacy against everyone.", rows)
    return "\n".join([*lines, *_closing(statement)])


def _opening(title: str, statement: Promise, warning: str, rows: Iterable[Row]) -> list[str]:
    lines = [title, "", *_failed(statement.failure).splitlines()]
    if statement.insecure:
        lines += [f"> **{warning}** {statement.not_covered[0]}.", ""]
    elif statement.epsilon and not is_promise(statement.best_epsilon):
        lines += [f"> **{warning}** So large an epsilon promises nothing: 8 is weak.", ""]
    elif statement.epsilon and is_large_delta(statement.delta):
        lines += [f"> **{LARGE_DELTA.format(delta=delta_rounded_up(statement.delta))}**", ""]
    return [*lines, "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows), ""]


def _failed(why: str | None) -> str:
    """Return the warning above a training that counts as failed; nothing for any other."""
    return "" if why is None else f"> **This training failed.** {why}.\n\n"


def _closing(statement: Promise) -> list[str]:
    """Return what every page ends with: each epsilon, and what is not covered."""
    lines = ["## Epsilon by each accountant", "", "| accountant | epsilon |", "|---|---|"]
    for name, value in statement.epsilon.items():
        quoted = " (quoted)" if name == statement.quoted else ""
        lines.append(f"| {ACCOUNTANTS[name]}{quoted} | {rounded_up(value)} |")
    lines += ["", "Each is an upper bound on its own; the smallest is quoted."]
    lines += [second_figure_in_words(statement.second_figure), ""]
    return [*lines, "## What is not covered", "", *(f"- {x}" for x in statement.not_covered), ""]


def _promise(statement: Promise, *, nothing: str = "") -> Row:
    """Return the row of the promise, rounded up; `nothing` takes the number's place."""
    promise = nothing or "no finite epsilon is known"
    if not nothing and statement.quoted in statement.epsilon:
        delta = delta_rounded_up(statement.delta)
        promise = f"epsilon {rounded_up(statement.best_epsilon)} at delta {delta}"
        if not is_promise(statement.best_epsilon, insecure=statement.insecure):
            promise = f"no privacy: {promise}"
    return "promise", f"**{promise}**, of a budget of {rounded_up(statement.budget.epsilon)}"


def _several_records(statement: Promise) -> list[Row]:
    """Return the row of one person's records together, where the unit is a record."""
    several = statement.epsilon_of_several
    if several is None:
        return []
    bounds = [
        f"no number for {count} records"
        if bound is None
        else f"epsilon {rounded_up(bound)} for {count} records"
        for count, bound in several.items()
    ]
    return [("one person's records at one client", f"{', '.join(bounds)}, at the same delta")]


def _so_far(statement: PrivacyStatement) -> list[Row]:
    """Return the row that tells what was spent, where that is less than the promise."""
    spent = statement.epsilon_so_far
    if not statement.releases or spent == statement.epsilon or not spent:
        return []
    best = rounded_up(min(spent.values()))
    return [("spent so far", f"{best}; a promise only if no release had a part in stopping there")]


def _secure_sums(statement: PrivacyStatement) -> list[Row]:
    """Return the rows of noise in shares: each promise, and what it needs."""
    sums = statement.secure_sums
    if sums is None:
        return []
    opened = f"at least {sums.least} of {sums.nodes} nodes, if the server follows the protocol"
    if sums.guaranteed is not None:
        opened += f"; at least {sums.guaranteed} if it lies, as nodes know each other by a roster"
    rows = [
        ("an opened sum", opened),
        (
            "shares of noise",
            f"{sums.honest_shares} of nodes that do not collude are counted; {sums.colluding} may "
            "collude",
        ),
    ]
    if statement.releases:
        rows.append(
            (
                "against others",
                f"epsilon {rounded_up(sums.epsilon_of_models)} against who sees released models "
                f"alone, with {sums.least} shares of noise, if clients and server follow the "
                "protocol",
            )
        )
    error = f"{rounded_up(2.0 * sums.slack)} of epsilon pays for lambda {ceiling(sums.slack, 3)}"
    return [*rows, ("shares as one Gaussian", error)]


def _own_budgets(statement: PrivacyStatement) -> list[Row]:
    """Return the row of groups with budgets of their own, where there are any."""
    groups = [
        f"epsilon {rounded_up(each.epsilon)} of {brief_epsilon(each.budget)} for "
        f"{100 * each.share:.3g} % of the clients, at rate {each.sampling_rate:.4g}"
        + (f" and {each.noise_scale:.4g} times the noise" if each.noise_scale > 1.0 else "")
        for each in statement.own_budgets or ()
    ]
    return [("own budgets", "; ".join(groups))] if groups else []


def _hyper_parameters(statement: PrivacyStatement) -> list[Row]:
    """Return the row of their choice, where the statement covers it."""
    said = statement.hyper_parameters
    return [] if said is None else [("hyper-parameters", said)]


def _shared(statement: Promise) -> list[Row]:
    """Return the row of the parameters that travel, where that is not the whole model."""
    if statement.shared_parameters is None:
        return []
    names = ", ".join(statement.shared_parameters)
    return [
        (
            "shared parameters",
            f"{names}; the others stay at the nodes, where they are neither released nor covered",
        )
    ]


def _public_inputs(statement: Promise) -> list[Row]:
    """Return the row of what was public, where anything was."""
    if statement.public_inputs is None:
        return []
    said = "; ".join(statement.public_inputs)
    return [("what was public", f"{said}. Nothing is promised to what these were made of")]


def _norm(statement: PrivacyStatement) -> str:
    norm = f"{statement.clipping_norm:g}"
    return f"{norm} at first" if statement.clipping.kind == "adaptive" else norm
