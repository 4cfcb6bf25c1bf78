"""Settings that can't go together, in the words of the errors themselves.

Nothing is checked here: whoever knows a reason raises `IncompatibleOptions`, and this only asks for
what is refused. `docs/tables.py` writes the table into docs/configuration.md.
"""

from __future__ import annotations

import warnings
from functools import cache

from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan, make_record_plan
from fl_dp.app.statistics import statistic_plan

_RECORDS = "privacy.unit=record privacy.neighboring_relation=replace-one"
_GRADIENTS = "privacy=distributed_records"
_CYCLIC = "privacy.noise=cyclic privacy.groups=4 privacy.bands=4"
_BUFFER = "selection=buffered"
_TUNED = "tune.candidates=['client.epochs=1','client.epochs=2']"
_SHARES, _ALL = "privacy=distributed", "selection.sampling_rate=1"

EXCLUSIONS: tuple[tuple[str, ...], ...] = (
    (f"{_GRADIENTS} model.shared=['1.bias']",),
    tuple(
        f"{each} model.lora_rank=2 model.lora_train=alternating"
        for each in ("privacy=central", "privacy=local selection=public", _SHARES)
    ),
    (
        *(f"privacy=local selection={name}" for name in ("poisson", "truncated_poisson")),
        *(f"privacy=local selection={name}" for name in ("fixed", "dp_utility")),
    ),
    (
        "privacy=local selection=public clipping=adaptive",
        "privacy=local selection=public clipping=per_layer clipping.norms=[0.1,0.2]",
        "privacy=local selection=public metrics.loss=[0,5]",
    ),
    ("privacy=local selection=public schedule=plateau",),
    (
        "privacy=local selection=public weights.cap=9 weights.total=99 "
        "weights.capped_denominator=true",
    ),
    ("privacy=local selection=exponential",),
    (
        "privacy=local selection=public simulation.units_per_node=50",
        "privacy=local selection.coins=nodes",
    ),
    (
        "privacy=none simulation.units_per_node=50",
        "privacy=none selection.coins=nodes",
        "privacy=dp_sgd simulation.units_per_node=50",
        "privacy=dp_sgd selection.coins=nodes",
    ),
    (
        "privacy=none privacy.witness_dir=/mnt/other",
        "privacy=dp_sgd privacy.witness_dir=/mnt/other",
    ),
    (
        "dp_sgd.epsilon=4",
        "privacy=none dp_sgd.clipping_norm=2",
        "dp_sgd.secure_randomness=true",  # its default: asked for all the same
    ),
    tuple(
        f"selection.participation_cap=9 selection={name}"
        for name in ("poisson", "truncated_poisson", "fixed", "dp_utility")
    ),
    (
        "selection=public selection.participation_cap=9 schedule=linear",
        "selection=public selection.participation_cap=9 schedule=plateau",
    ),
    ("selection.sampling_rate=1 selection.participation_cap=9 selection.coins=nodes",),
    tuple(
        f"selection={name} selection.coins=nodes"
        for name in (
            "fixed",
            "truncated_poisson",
            "exponential",
            "dp_utility",
            "public",
            "buffered",
        )
    ),
    tuple(
        f"selection={name} simulation.units_per_node=3" for name in ("fixed", "truncated_poisson")
    ),
    ("selection=truncated_poisson privacy.neighboring_relation=add-or-remove-one",),
    ("selection=dp_utility privacy.neighboring_relation=add-or-remove-one",),
    tuple(
        f"selection={name} privacy.neighboring_relation=add-or-remove-one"
        for name in ("public", "exponential")
    ),
    (
        "privacy.unit=record privacy.neighboring_relation=zero-out",
        "privacy.unit=record privacy.neighboring_relation=add-or-remove-one",
    ),
    (
        f"selection=exponential {_RECORDS}",
        "selection=exponential selection.records_per_client=9",
    ),
    (
        f"selection=exponential {_RECORDS} selection.records_per_client=9 "
        "selection.utility=staleness",
    ),
    ("weights.total=99", "weights.capped_denominator=true"),
    ("weights.cap=9 weights.capped_denominator=true",),
    (
        "weights.cap=9 weights.total=99 weights.capped_denominator=true "
        "simulation.units_per_node=50",
        "weights.cap=9 weights.total=99 weights.capped_denominator=true selection.coins=nodes",
    ),
    tuple(f"{_SHARES} selection={name}" for name in ("poisson", "truncated_poisson", "fixed")),
    (f"{_SHARES} selection=exponential",),
    (f"{_SHARES} selection.coins=nodes",),
    (f"{_SHARES} selection=public simulation.units_per_node=5",),
    (f"{_SHARES} {_ALL} weights.cap=9",),
    (f"{_SHARES} {_ALL} weights.cap=9 weights.total=99",),
    (f"{_SHARES} {_ALL} weights.cap=9 weights.total=99 weights.capped_denominator=true",),
    (f"{_SHARES} {_ALL} schedule=plateau",),
    (f"{_SHARES} {_ALL} privacy.neighboring_relation=add-or-remove-one",),
    (f"{_SHARES} {_ALL} compression.up=quantize",),
    (
        f"{_GRADIENTS} clipping=adaptive",
        f"{_GRADIENTS} clipping=per_layer clipping.norms=[0.1,0.2]",
    ),
    (f"{_GRADIENTS} metrics.loss=[0,5]",),
    tuple(f"{_GRADIENTS} selection={name}" for name in ("truncated_poisson", "fixed", "public")),
    (f"{_GRADIENTS} selection.coins=server",),
    (f"{_GRADIENTS} simulation.units_per_node=5",),
    (f"{_GRADIENTS} dp_sgd=on",),
    ("task.num_records=999", "privacy=distributed task.max_records=99"),
    (f"{_SHARES} {_ALL} roster_may_grow=true",),
    ("secure_sum.bits=20", "privacy=local selection=public secure_sum.roster=/srv/roster.json"),
    ("selection=exponential selection.utility=update_norm simulation.units_per_node=50",),
    (
        "compression.up=quantize simulation.units_per_node=50",
        "compression.up=quantize selection.coins=nodes",
    ),
    ("schedule=plateau selection=truncated_poisson",),
    (f"{_CYCLIC} schedule=linear", f"{_CYCLIC} schedule=plateau"),
    (f"{_CYCLIC} weights.cap=9 weights.total=99 weights.capped_denominator=true",),
    (f"{_CYCLIC} selection.participation_cap=5",),
    (f"{_CYCLIC} selection.coins=nodes",),
    (f"{_CYCLIC} roster_may_grow=true",),
    (
        "privacy.noise=spaced selection=public selection.sampling_rate=1",
        "privacy.noise=spaced selection=public selection.sampling_rate=0.75",
    ),
    (
        *(f"privacy.noise=cyclic selection={name}" for name in ("public", "fixed")),
        *(f"privacy.noise=spaced selection={name}" for name in ("poisson", "exponential")),
        "privacy.noise=auto selection=dp_utility",
    ),
    ("privacy.noise=cyclic selection=buffered",),
    (f"{_SHARES} selection=buffered",),
    ("privacy=local selection=buffered",),
    (f"{_BUFFER} simulation.units_per_node=5",),
    (f"{_BUFFER} weights.cap=9 weights.total=99 weights.capped_denominator=true",),
    ("privacy=none selection=buffered", "privacy=dp_sgd selection=buffered"),
    (
        "privacy.noise=cyclic privacy.separation=4",
        "privacy.noise=spaced privacy.groups=4",
        "privacy.bands=4",
    ),
    ("privacy.noise=auto privacy.noise_multiplier=2",),
    (f"{_SHARES} privacy.noise=cyclic", "privacy=local privacy.noise=cyclic"),
    ("privacy=none privacy.noise=cyclic", "privacy=dp_sgd privacy.noise=auto"),
    ("schedule=plateau privacy.noise_multiplier=2",),
    ("task=csv task.partition=nodes simulation.units_per_node=2",),
    tuple(
        f"dp_sgd=on {setting}"
        for setting in ("metrics.loss=[0,5]", "weights.cap=9", "selection=exponential")
    ),
    ("dp_sgd=on privacy.insecure_seed=1",),
    ("dp_sgd=on privacy.neighboring_relation=add-or-remove-one",),
    (
        *(f"statistic.query=count privacy={mode}" for mode in ("local", "none")),
        *(f"statistic.query=count {setting}" for setting in ("dp_sgd=on", _RECORDS)),
        "statistic.query=count privacy.neighboring_relation=add-or-remove-one",
        f"statistic.query=count {_SHARES} statistic.law=laplace",
        f"statistic.query=count {_SHARES} privacy.insecure_seed=1",
        "statistic.query=count privacy.noise_multiplier=2 statistic.law=laplace",
        "statistic.query=count selection.coins=nodes",
    ),
    (
        *(f"{_TUNED} privacy={mode}" for mode in ("local", "distributed")),
        f"{_TUNED} dp_sgd=on",
        f"{_TUNED} privacy.noise_multiplier=2",
        f"{_TUNED} selection.coins=nodes",
        f"{_TUNED} tune.by=stopping schedule=plateau",
        f"{_TUNED} tune.by=stopping selection=public selection.participation_cap=9",
        f"{_TUNED} tune.by=stopping tracking.metrics_port=9100",
        f"{_TUNED} tune.by=public tune.share=0.2",
    ),
    ("privacy=dp_sgd selection.participation_cap=9",),
    ("privacy=dp_sgd schedule=linear",),
    ("privacy=dp_sgd clipping=adaptive",),
    ("privacy=dp_sgd privacy.epsilon=4", "privacy=dp_sgd privacy.noise_multiplier=2"),
    ("privacy=dp_sgd dp_sgd=off",),
    (
        "tracking.uri=https://mlflow.example.org",
        "tracking=wandb tracking.uri=https://mlflow.example.org",
    ),
    (
        "tracking.mode=online",
        "tracking=tensorboard tracking.mode=online",
        "tracking=mlflow tracking.mode=online",
    ),
    ("tracking=mlflow tracking.uri=https://mlflow.example.org",),
)
"""Overrides that are refused; those of one row for one reason."""


@cache
def refusal(overrides: str) -> ValueError | None:
    """Return the error that settings end with before anything is started, None if there is none.

    Args:
        overrides: As on the command line, with spaces between them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            settings = compose_settings(overrides.split())
            if settings.statistic.query is not None:
                statistic_plan(settings)
                return None
            make_record_plan(settings)
            if settings.protects_clients:
                make_plan(settings)
        except ValueError as error:
            return error
    return None


def table() -> str:
    """Return the table in Markdown, each row with the error of its first settings."""
    lines = ["| settings | error |", "|---|---|"]
    for row in EXCLUSIONS:
        error = refusal(row[0])
        assert error is not None, f"{row[0]} is not refused"
        lines.append(f"| {_in_words(row)} | {error} |")
    return "\n".join(lines)


def _in_words(row: tuple[str, ...]) -> str:
    """Return a row's settings, with what they have in common said once."""
    words = [each.split() for each in row]
    common = [word for word in words[0] if all(word in each for each in words)]
    rests = [" ".join(word for word in each if word not in common) for each in words]
    if len(row) == 1 or not common:
        return " or ".join(f"`{each}`" for each in row)
    return f"`{' '.join(common)}` with {' or '.join(f'`{rest}`' for rest in rests)}"
