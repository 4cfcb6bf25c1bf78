"""Choices of a configuration that exclude each other: one row each, beside those of a plan.

These rows are about what only the app knows: which noise goes with which selection, what DP-SGD
inside clients leaves to nobody else, and what a statistic can't keep to. `settings/run.py` has the
rows that settings are checked by whenever they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fl_dp.option_errors import Exclusion

from .settings import Settings
from .settings.noises import NOISES, NoiseSettings

_BY_UTILITY = ("exponential", "dp_utility")


def fitting_selections(noise: NoiseSettings) -> str:
    """Return which selections a noise goes with that does not go with all."""
    first, *others = noise.selections
    return " or ".join([f"{{noise={noise.name}}} goes with {{selection={first}}}", *others])


_FITTING = [fitting_selections(noise) for noise in NOISES if noise.selections]


def _needs_another_selection(settings: Settings) -> bool:
    fitting = settings.noise.selections
    return bool(fitting) and settings.selection.name not in fitting


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Settings that were composed, and the keys that were written for them.

    Attributes:
        written: Their values as text.
        settings: What they came to.
    """

    written: Mapping[str, str]
    settings: Settings


OVERRIDES: tuple[Exclusion[Composed], ...] = (
    Exclusion(
        options=("dp_sgd", "privacy"),
        when=lambda given: (
            given.written.get("dp_sgd") == "off"
            and given.written.get("privacy") != "none"
            and not (given.settings.protects_clients or given.settings.protects_records)
        ),
        why="{dp_sgd=off} leaves nothing of a promise to records",
        instead="leave it out, or write {privacy=none} if nobody is to be protected",
    ),
)
"""What may not be written, as it takes away what another choice promises."""

PARTS: tuple[Exclusion[Settings], ...] = (
    Exclusion(
        options=("task.label_range", "metrics.accuracy", "selection.utility"),
        when=lambda given: (
            given.task.label_range is not None
            and (given.metrics.accuracy is not None or given.selection.utility == "accuracy")
        ),
        why="a label that is a number ({task.label_range}) has no accuracy",
        instead="write {metrics.loss} and {selection.utility=loss}",
    ),
    Exclusion(
        options=("model.shared", "privacy.unit"),
        when=lambda given: given.model.shared is not None and given.privacy.unit == "record",
        why="a personal part that records trained without noise steers the gradients of all other "
        "records, which {privacy.unit=record} does not bound",
        instead="write {privacy.unit=client}, or {privacy=dp_sgd}, or leave {model.shared} out",
    ),
    Exclusion(
        options=("simulation.units_per_node", "privacy.unit", "privacy"),
        when=lambda given: given.sums_records and given.simulation.units_at_node > 1,
        why="a client adds up the gradients of its own records",
        instead="with {privacy.unit=record} under {privacy=distributed} write "
        "{simulation.units_per_node=1}",
        got=("simulation.units_per_node",),
    ),
    Exclusion(
        options=("selection.coins", "privacy"),
        when=lambda given: (
            given.sums_records
            and given.selection.name == "poisson"
            and given.selection.coins != "nodes"
        ),
        why="nodes do not say how many records they have, so nobody else can draw them",
        instead="where units are records write {selection.coins=nodes}",
    ),
    Exclusion(
        options=("selection.records_per_client", "privacy.unit"),
        when=lambda given: (
            given.selection.name == "exponential"
            and given.privacy.unit == "record"
            and given.selection.records_per_client is None
        ),
        why="{privacy.unit=record} needs to know by how much one record moves what "
        "{selection=exponential} chooses by",
        instead="write {selection.records_per_client=...}, a public lower bound",
    ),
)
"""What a promise to clients leaves out."""

NOISE: tuple[Exclusion[Settings], ...] = (
    Exclusion(
        options=("noise", "privacy"),
        when=lambda given: (
            given.noise.name != "independent" and given.privacy.noised_by != "server"
        ),
        why="only a server that adds the noise can take it away again in later rounds",
        instead="write {privacy=central} or {noise=independent}",
        got=("noise", "privacy"),
    ),
    Exclusion(
        options=("selection", "noise"),
        when=_needs_another_selection,
        why=", ".join(_FITTING),
        instead="write that selection too",
        got=(
            "noise",
            "selection",
        ),
    ),
)
"""What the choice of noise leaves out."""

RECORDS: tuple[Exclusion[Settings], ...] = (
    Exclusion(
        options=("metrics.loss", "metrics.accuracy", "weights.cap", "privacy"),
        when=lambda given: (
            given.protects_records_alone
            and bool(given.metrics.loss or given.metrics.accuracy or given.weights.cap)
        ),
        why="nothing but the model may be computed from records that DP-SGD protects",
        instead="leave out {metrics.loss}, {metrics.accuracy} and {weights.cap}",
    ),
    Exclusion(
        options=("privacy.insecure_seed", "dp_sgd"),
        # Clients draw by themselves: a seed here would be reported and change nothing.
        when=lambda given: given.privacy.insecure_seed is not None,
        why="{privacy.insecure_seed} does not reach the clients' noise",
        instead="leave it out under DP-SGD",
    ),
    Exclusion(
        options=("selection", "privacy"),
        when=lambda given: given.protects_records_alone and given.selection.name in _BY_UTILITY,
        why="a selection by utility is paid for by a promise to clients, and their records alone "
        "are protected",
        instead="write {selection=poisson}, truncated_poisson, fixed or public",
    ),
    Exclusion(
        options=("selection.participation_cap", "privacy"),
        when=lambda given: (
            given.protects_records_alone and given.selection.participation_cap is not None
        ),
        why="{selection.participation_cap} belongs to a promise to clients, and their records "
        "alone are protected",
        instead="write {dp_sgd.participations}, which bounds the rounds of one",
    ),
    Exclusion(
        options=("schedule", "privacy"),
        when=lambda given: given.protects_records_alone and given.schedule.name != "constant",
        why="the noise of DP-SGD does not change, and records alone are protected",
        instead="write {schedule=constant}",
    ),
    Exclusion(
        options=("clipping", "privacy"),
        when=lambda given: given.protects_records_alone and given.clipping.name != "fixed",
        why="the server does not clip where records alone are protected",
        instead="write {clipping=fixed}, and {dp_sgd.clipping_norm} for gradients",
    ),
    Exclusion(
        options=("dp_sgd.expected_batch_size", "privacy.neighboring_relation"),
        when=lambda given: (
            given.privacy.neighboring_relation == "add-or-remove-one"
            and given.record_training.expected_batch_size is None
        ),
        why="{privacy.neighboring_relation=add-or-remove-one} hides how many records a client has",
        instead="give {dp_sgd.expected_batch_size}, a public constant, for example "
        "{dp_sgd.sampling_rate} times a typical client's records",
    ),
)
"""What DP-SGD inside clients leaves out."""

STATISTICS: tuple[Exclusion[Settings], ...] = (
    Exclusion(
        options=("privacy", "statistic.query"),
        when=lambda given: given.privacy.noised_by not in ("server", "nodes"),
        why="{privacy=?} has nobody to add a statistic's noise",
        instead="write {privacy=central} or {privacy=distributed}",
    ),
    Exclusion(
        options=("privacy.unit", "statistic.query"),
        when=lambda given: given.privacy.unit != "client",
        why="a statistic protects a client with all its records",
        instead="write {privacy.unit=client}",
    ),
    Exclusion(
        options=("privacy.neighboring_relation", "statistic.query"),
        when=lambda given: given.privacy.neighboring_relation != "zero-out",
        why="the sensitivity of a statistic is that of zero-out neighbours",
        instead="leave {privacy.neighboring_relation} out",
    ),
    Exclusion(
        options=("dp_sgd", "statistic.query"),
        when=lambda given: given.protects_records,
        why="{dp_sgd} is for training, and a statistic trains nothing",
        instead="leave it out",
    ),
    Exclusion(
        options=("selection.coins", "statistic.query"),
        when=lambda given: given.selection.coins == "nodes",
        why="{selection.coins=nodes} samples clients, and a statistic asks all of them",
        instead="leave it out",
    ),
    Exclusion(
        options=("statistic.law", "privacy"),
        when=lambda given: given.privacy.noised_by == "nodes" and given.statistic.law == "laplace",
        why="the noise of a secure sum is Gaussian",
        instead="leave {statistic.law} out",
    ),
    Exclusion(
        options=("statistic.law", "privacy.noise_multiplier"),
        when=lambda given: (
            given.privacy.noise_multiplier is not None and given.statistic.law is not None
        ),
        why="{statistic.law} and {privacy.noise_multiplier} both choose the noise",
        instead="leave one out",
    ),
    Exclusion(
        options=("privacy.insecure_seed", "privacy"),
        when=lambda given: (
            given.privacy.noised_by == "nodes" and given.privacy.insecure_seed is not None
        ),
        why="{privacy.insecure_seed} does not reach the nodes' noise",
        instead="leave it out with a statistic by secure sums",
    ),
)
"""What a statistic leaves out."""
