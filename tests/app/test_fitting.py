"""What the app says that a promise has of other groups is what its kind of plan accepts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest

from fl_dp.accounting import VisibleSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.app.compose import compose_settings
from fl_dp.app.overrides import ConfigError
from fl_dp.app.planning import make_plan, make_selection
from fl_dp.app.settings import OPTIONS
from fl_dp.app.settings.fitting import GROUPS, KEYS
from fl_dp.app.settings.promises import PROMISES, PromiseOption
from fl_dp.option_errors import IncompatibleOptions, OptionError
from fl_dp.plan.as_json import KINDS
from fl_dp.plan.clipped import RuleClippedPlan
from fl_dp.strategies import check_together
from fl_dp.updates.compression_options import CompressionOptions

CLIENTS = 40
PLANNED = {mode: promise for mode, promise in PROMISES.items() if promise.kind is not None}
# Far beyond epsilon 100 bounds are in closed form, and nothing is computed for seconds.
SMALL = (
    *("rounds=4", f"task.num_clients={CLIENTS}", "privacy.epsilon=1000", "privacy.delta=1e-4"),
    "model=logistic",
)
ALONE = {
    "correlated": ("selection=public", "privacy.bands=2", "selection.sampling_rate=0.1"),
    "grouped": ("privacy.epsilon=150", "selection.budgets=[140,150]", "selection.shares=[0.5,0.5]"),
    "local": ("selection.sampling_rate=1",),
    "distributed": ("selection.sampling_rate=1",),
    "distributed_records": ("privacy.secure_sum.bits=32",),
}
"""What a kind needs besides its name."""
NEEDS: dict[str, tuple[str, ...]] = {
    # Noise that is given: the composition of such cohorts is computed for seconds.
    "selection=fixed": ("privacy.epsilon=null", "privacy.noise_multiplier=1"),
    "selection=own_budgets": (
        "privacy.epsilon=150",
        "selection.budgets=[140,150]",
        "selection.shares=[0.5,0.5]",
    ),
    "schedule=custom": ("schedule.weights=[1,2,2,3]",),
    "total_weight=30": ("weight_cap=9",),
    "metrics.loss=[0,5]": ("metrics.scalar_noise_std=9",),
}
"""What an option needs besides itself."""
FIELDS = {
    "metrics.loss": "[0,5]",
    "metrics.accuracy": "[0,1]",
    "metrics.scalar_noise_std": "9",
    "total_weight": "30",
    "simulation.units_per_node": "2",
    "selection.coins_at_nodes": "true",
    "selection.participation_cap": "4",
}
"""Keys that come to a field of a plan, with a value."""
OF_NO_PLAN = {"metrics.private_epsilon", "weight_cap", "statistic.query", "statistic.law"}
"""Keys about what stands beside a plan."""


def overrides_of(mode: str, *asked: str) -> list[str]:
    """A small training with a promise and what both need, and nothing twice."""
    needed = [each for one in asked for each in NEEDS.get(one, ())]
    given = {each.partition("=")[0]: each for each in [*SMALL, *ALONE.get(mode, ()), *needed]}
    given |= {each.partition("=")[0]: each for each in asked}
    if mode == "correlated" and given["selection"] != "selection=public":
        given["privacy.groups"] = "privacy.groups=2"
    if mode == "distributed" and "selection.coins_at_nodes" in given:
        given["reply"] = "privacy.secure_sum.reply_after=30"
    return [f"privacy={mode}", *given.values()]


def declared() -> Iterator[tuple[str, str]]:
    """Each promise with each thing of other groups that it says it has."""
    for mode, promise in PLANNED.items():
        yield from ((mode, f"selection={name}") for name in promise.fitting.selection)
        yield from ((mode, f"clipping={name}") for name in promise.fitting.clipping)
        yield from ((mode, f"schedule={name}") for name in promise.fitting.schedule[:2])
        keys = (key for key in promise.fitting.keys if key in FIELDS)
        yield from ((mode, f"{key}={FIELDS[key]}") for key in keys)


@pytest.mark.parametrize(("mode", "asked"), declared())
def test_what_a_promise_says_it_has_makes_a_plan_of_its_kind(mode: str, asked: str) -> None:
    more = ("selection=public",) if "participation_cap" in asked and mode != "buffered" else ()
    plan = make_plan(compose_settings(overrides_of(mode, asked, *more)))
    assert type(plan) is KINDS[mode]


def test_every_kind_of_plan_is_chosen_by_its_name() -> None:
    assert set(PLANNED) == set(KINDS)
    assert all(PLANNED[mode].kind is kind for mode, kind in KINDS.items())


def takes_a_cap(mode: str) -> bool:
    """Tell whether a plan of the kind may have a law with a cap."""
    plan = make_plan(compose_settings(overrides_of(mode)))
    apart = getattr(plan.sampling, "separation", 1)
    laws: list[Any] = [
        VisibleSampling(cohort=CLIENTS // apart, separation=apart, participation_cap=9_999),
        BufferedSampling(cohort=CLIENTS, participation_cap=9_999),
    ]
    for law in laws:
        with suppress(OptionError):
            replace(plan, **{"sampling": law})
            return True
    return False


@pytest.mark.parametrize("mode", PLANNED)
def test_a_promise_has_the_keys_that_its_kind_has_a_field_for_and_no_other(mode: str) -> None:
    fitting, known = PLANNED[mode].fitting, {field.name for field in fields(KINDS[mode])}
    if takes_a_cap(mode):
        known.add("participation_cap")
    assert {key for key in fitting.keys if key in FIELDS} == {
        key for key in FIELDS if {key.rpartition(".")[2], key.partition(".")[0]} & known
    }
    assert (len(fitting.clipping) > 1) == (RuleClippedPlan in KINDS[mode].__mro__)
    assert (len(fitting.schedule) > 1) == ("schedule" in known)
    if mode == "distributed_records":
        known.remove("unit")  # task.person_column says it
    assert ("unit" in {field.name for field in fields(PLANNED[mode])}) == ("unit" in known)
    assert set(KEYS) == OF_NO_PLAN | set(FIELDS)


@pytest.mark.parametrize("mode", PLANNED)
def test_a_kind_refuses_the_selections_that_its_promise_does_not_have(mode: str) -> None:
    plan = make_plan(compose_settings(overrides_of(mode)))
    for name in OPTIONS["selection"].keys() - set(PLANNED[mode].fitting.selection):
        own = NEEDS.get(f"selection={name}", ())
        bringing = {"own_budgets": "grouped", "buffered": "buffered"}.get(name, "central")
        of_another = [f"privacy={bringing}", f"selection={name}", *SMALL, *own]
        selection = make_selection(compose_settings(of_another))
        law: dict[str, Any] = {"sampling": selection.sampling}
        with pytest.raises(IncompatibleOptions):
            check_together(
                replace(plan, **law, noise_multiplier=math.nan),
                selection,
                weight_cap=None,
                dp_sgd=False,
                compression=CompressionOptions(),
            )


@pytest.mark.parametrize("mode", PLANNED)
def test_dp_sgd_stands_beside_a_kind_where_its_promise_says_so(mode: str) -> None:
    settings, refused = compose_settings(overrides_of(mode)), False
    try:
        check_together(
            make_plan(settings),
            make_selection(settings),
            weight_cap=None,
            dp_sgd=True,
            compression=CompressionOptions(),
        )
    except IncompatibleOptions:
        refused = True
    assert refused == ("on" not in PLANNED[mode].fitting.dp_sgd)


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES)
def test_what_a_promise_has_not_is_refused_and_no_advice_trusts_somebody_more(
    promise: type[PromiseOption],
) -> None:
    """Another promise is named as another one: who needs it has to choose it."""
    mode = promise.option
    for group in GROUPS:
        options = getattr(promise.fitting, group)
        for name in OPTIONS[group].keys() - set(options):
            with pytest.raises(ConfigError) as refused:
                compose_settings([f"privacy={mode}", f"{group}={name}"])
            said = f"privacy={mode} has no {group}={name}: write {group}={options[0]}"
            assert str(refused.value).startswith(said)
            assert "privacy=" in str(refused.value).removeprefix(said)
            advice = str(refused.value).partition(" (another promise")[0]
            advised = advice.partition("or write privacy=")[2].replace(" or ", ", ")
            for other_mode in filter(None, advised.split(", ")):
                other = OPTIONS["privacy"][other_mode]
                assert other_mode != "none"
                if mode != "none":
                    assert (other.noised_by, other.unit) == (promise.noised_by, promise.unit)


def test_a_promise_brings_its_first_options_where_nobody_chose() -> None:
    for mode, promise in PROMISES.items():
        settings = compose_settings([f"privacy={mode}"])
        assert settings.selection.name == promise.fitting.selection[0]
        assert settings.protects_records is (promise.fitting.dp_sgd[0] == "on")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("privacy=local metrics.loss=[0,5]", "privacy=local has no metrics.loss=[0.0, 5.0]: leave"),
        ("privacy=dp_sgd weight_cap=3", "another promise has it: privacy=central or correlated"),
    ],
)
def test_a_key_that_a_promise_has_not_is_refused_with_the_promises_that_have_it(
    overrides: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_settings(overrides.split())
    assert said in str(refused.value)
    assert ": leave it out" in str(refused.value)


def test_a_settings_document_is_checked_like_overrides() -> None:
    settings = compose_settings(["clipping=adaptive"])
    with pytest.raises(IncompatibleOptions, match="privacy=local has no clipping=adaptive"):
        replace(settings, privacy=OPTIONS["privacy"]["local"])


def test_a_selection_that_knows_no_records_is_charged_for_records_as_for_clients() -> None:
    """One record then moves its client's utility by its whole range, as another client would."""
    replaced = ["privacy.neighboring_relation=replace-one", "selection=exponential", "rounds=5"]
    of_clients = make_plan(compose_settings(replaced))
    of_records = make_plan(compose_settings([*replaced, "privacy.unit=record"]))
    assert of_records.unit == "record" and of_records.other_releases
    assert of_records.history == of_clients.history
    zeroed = make_plan(compose_settings(replaced[1:]))
    assert of_records.noise_multiplier > 1.9 * zeroed.noise_multiplier
