"""Pages of statements in Markdown, for a person to read and sign."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch

from fl_dp.guarantee import Against
from fl_dp.promise import (
    Enforcement,
    brief_epsilon,
    ceiling,
    delta_rounded_up,
    is_large_delta,
    is_promise,
    rounded_up,
)

from .sentences import ACCOUNTANTS, LARGE_DELTA
from .stated_promise import NoPromise, PrivacyStatement, Promise, RecordStatement
from .words import (
    describe_event,
    neighbours_in_words,
    second_figure_in_words,
    unit_of_words,
)

Row = tuple[str, str]


@singledispatch
def statement_markdown(statement: PrivacyStatement | RecordStatement | NoPromise) -> str:
    """Return a statement's page, with that of its promise to records, if any."""
    raise TypeError(f"a {type(statement).__name__} is no statement")


@statement_markdown.register
def _of_nothing(statement: NoPromise) -> str:
    return (
        f"# Privacy statement\n\n{_failed(statement.failure)}"
        "Nothing is promised: this run trained without a plan. Its model and its "
        "metrics may show any client's data.\n"
    )


@statement_markdown.register
def _of_clients(statement: PrivacyStatement) -> str:
    relation = statement.neighboring_relation
    sampled = "client" if statement.secure_sums is None else statement.secure_sums.sampled
    nothing = "" if statement.releases else "nothing was released"
    rows = [
        _promise(statement, nothing=nothing),
        *_so_far(statement),
        ("account", _account(statement)),
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
    if statement.records is None:
        return page
    return f"{page}\n{_of_records(statement.records)}"


def _enforcement(statement: PrivacyStatement | RecordStatement) -> list[Row]:
    """Return the row of the promise's enforcement, where nodes were behind gates."""
    if statement.enforcement is None:
        return []
    if statement.enforcement is Enforcement.NAMED_APP:
        return [("holds", f"{statement.enforcement}, which runs no other, as sites say")]
    return [("holds", f"{statement.enforcement}, whatever app the server sends, as sites say")]


def _of_one_client(statement: PrivacyStatement) -> list[str]:
    """Explain a list of releases that a cap makes shorter than the training."""
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
    text = (
        f"{statement.rounds} charged and {statement.rounds_committed} released, "
        f"of {statement.rounds_planned} planned"
    )
    if statement.most_rounds is None:
        return text
    least = " of the least noise" if len(set(statement.noise_multipliers)) > 1 else ""
    return f"{text}; at most {statement.most_rounds}{least} for one client"


@statement_markdown.register
def _of_records(statement: RecordStatement) -> str:
    asked = "an unknown number"
    if statement.participations is not None:
        asked = f"{statement.participations} at most"
    planned, unit = statement.participations_planned, unit_of_words(statement.unit)
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
        ("sampling rate", f"{statement.sampling_rate:g} of a client's {unit}s in each step"),
        ("clipping norm", f"{statement.clipping_norm:g}, of one {unit}'s gradient"),
        ("rounds of one client", f"{asked} in this run, {planned} planned"),
        ("clients", str(statement.num_clients)),
        *_shared(statement),
        *_public_inputs(statement),
    ]
    title = f"# Privacy statement: {unit}s"
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


def _failed(reason: str | None) -> str:
    """Return a failed training's warning; else an empty text."""
    return "" if reason is None else f"> **This training failed.** {reason}.\n\n"


def _closing(statement: Promise) -> list[str]:
    """Return the end of every page: each epsilon, and what is not covered."""
    lines = ["## Epsilon by each accountant", "", "| accountant | epsilon |", "|---|---|"]
    for name, value in statement.epsilon.items():
        quoted = " (quoted)" if name == statement.quoted else ""
        lines.append(f"| {ACCOUNTANTS[name]}{quoted} | {rounded_up(value)} |")
    terms = statement.guarantee.terms
    lines += ["", f"Each is an upper bound on its own, {terms}; the smallest is quoted."]
    lines += [second_figure_in_words(statement.second_figure), ""]
    sentences = [f"- {sentence}" for sentence in statement.not_covered]
    return [*lines, "## What is not covered", "", *sentences, ""]


def _promise(statement: Promise, *, nothing: str = "") -> Row:
    """Return the row of the promise; `nothing` replaces it."""
    guarantee = statement.guarantee
    promise = nothing or "no finite epsilon is known"
    if not nothing and guarantee.epsilon is not None:
        promise = str(guarantee)
    return "promise", f"**{promise}**, of a budget of {brief_epsilon(statement.budget.epsilon)}"


def _several_records(statement: Promise) -> list[Row]:
    """Return the row for a person who is several units: records, or at several clients."""
    several = statement.epsilon_of_several
    if several is None:
        return []
    name, where = "one person's records at one client", "for {} records"
    if unit_of_words(statement.unit) == "person":
        name, where = "one person's records at several clients", "at {} clients"
    bounds: list[str] = []
    for count, bound in several.items():
        number = "no number" if bound is None else f"epsilon {rounded_up(bound)}"
        bounds.append(f"{number} {where.format(count)}")
    return [(name, f"{', '.join(bounds)}, at the same delta")]


def _so_far(statement: PrivacyStatement) -> list[Row]:
    """Return the row of the spent budget, where it is less than the promise."""
    spent = statement.epsilon_so_far
    if not statement.releases or spent == statement.epsilon or not spent:
        return []
    best = rounded_up(min(spent.values()))
    return [("spent so far", f"{best}; a promise only if no release had a part in stopping there")]


def _secure_sums(statement: PrivacyStatement) -> list[Row]:
    """Return the rows of noise in shares: each promise, and its conditions."""
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
        of_models = replace(
            statement.guarantee, epsilon=sums.epsilon_of_models, against=Against.MODELS
        )
        rows.append(
            (
                "against others",
                f"{of_models} alone, with {sums.least} shares of noise, if clients and server "
                "follow the protocol",
            )
        )
    error = f"{rounded_up(2.0 * sums.slack)} of epsilon pays for lambda {ceiling(sums.slack, 3)}"
    return [*rows, ("shares as one Gaussian", error)]


def _account(statement: PrivacyStatement) -> str:
    """Return what all trainings of the account add up to, in words."""
    account = statement.account
    total = "no number"
    if account.epsilon is not None:
        in_all = replace(
            statement.guarantee,
            epsilon=account.epsilon,
            delta=account.delta,
            against=Against.OF_EACH_RUN,
        )
        total = str(in_all)
    cap = "" if account.cap is None else f", of a cap of {brief_epsilon(account.cap)}"
    if account.trainings == 1:
        together = f"'{account.training}', so far the only training of {account.name}"
    else:
        together = (
            f"all {account.trainings} trainings of {account.name} together, each at its budget, "
            f"with this one, '{account.training}'"
        )
    return f"{total}{cap}, for {together}"


def _own_budgets(statement: PrivacyStatement) -> list[Row]:
    """Return the row of groups with their own budgets, if any."""
    groups: list[str] = []
    for group in statement.own_budgets or ():
        text = (
            f"epsilon {rounded_up(group.epsilon)} of {brief_epsilon(group.budget)} for "
            f"{100 * group.share:.3g} % of the clients, at rate {group.sampling_rate:.4g}"
        )
        if group.noise_scale > 1.0:
            text += f" and {group.noise_scale:.4g} times the noise"
        groups.append(text)
    return [("own budgets", "; ".join(groups))] if groups else []


def _hyper_parameters(statement: PrivacyStatement) -> list[Row]:
    """Return the row of the hyper-parameters' choice, if covered."""
    if statement.hyper_parameters is None:
        return []
    return [("hyper-parameters", statement.hyper_parameters)]


def _shared(statement: Promise) -> list[Row]:
    """Return the row of the shared parameters, if not the whole model."""
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
    """Return one row of each public input; its sentence says what it means, and for whom."""
    return [("outside the promise", sentence) for sentence in statement.public_inputs or ()]


def _norm(statement: PrivacyStatement) -> str:
    norm = f"{statement.clipping_norm:g}"
    return f"{norm} at first" if statement.clipping.kind == "adaptive" else norm
