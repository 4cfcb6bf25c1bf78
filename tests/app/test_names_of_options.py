"""One name for an option: its argument in Python is the last word of its key."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
from local_grid import LocalGrid

from fl_dp.accounting import NoiseSchedule, PrivacyBudget, Sampling
from fl_dp.app.compose import compose_settings
from fl_dp.app.keys import all_keys
from fl_dp.app.planning import make_plan
from fl_dp.app.server import train
from fl_dp.app.settings.options import chosen_by
from fl_dp.clients.per_record.dp_sgd import DPSGD
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import Clipping
from fl_dp.option_errors import OptionError
from fl_dp.plan import Banded, RecordPlan, SecureSum
from fl_dp.plan.as_json import KINDS
from fl_dp.strategies import DPFedAvg, RosterTooLarge, Selection


def with_subclasses(kind: type[Any]) -> set[type[Any]]:
    """Return a class and all that derive from it."""
    found = {kind}
    for subclass in kind.__subclasses__():
        found |= with_subclasses(subclass)
    return found


def arguments(of: Iterable[Callable[..., Any]]) -> set[str]:
    """Return the names of all arguments."""
    return {name for made in of for name in inspect.signature(made).parameters}


PLANS = tuple(KINDS.values())
LAWS = tuple(law for law in with_subclasses(Sampling) if not inspect.isabstract(law))
SELECTIONS = tuple(with_subclasses(Selection))
RULES = get_args(Clipping)

MADE_BY: dict[str, tuple[Callable[..., Any], ...]] = {
    "privacy": (*PLANS, *LAWS, PrivacyBudget, Banded.optimal),
    "privacy.secure_sum": (SecureSum,),
    "selection": (*SELECTIONS, *LAWS, *PLANS, DPFedAvg),
    "clipping": RULES,
    "schedule": (NoiseSchedule,),
    "metrics": PLANS,
    "dp_sgd": (RecordPlan, PrivacyBudget, DPSGD),
}
"""What each group of keys makes."""

OF_THE_APP = {
    "privacy.insecure_seed": "of the source of randomness",
    "privacy.account": "a file beside the runs",
    "privacy.account_cap": "of all its runs",
    "privacy.witness_dir": "a folder",
    "dp_sgd.ledger_dir": "a folder",
    "metrics.loss": "the range of a metric, whose name it is",
    "metrics.accuracy": "the range of a metric, whose name it is",
    "metrics.public": "measured by the server alone",
    "metrics.evaluate_every": "measured by the server alone",
    "metrics.private_epsilon": "of a release after the last round",
}
"""Keys that are no argument, with the reason."""

NO_KEYS = {
    "budget": "made of epsilon and delta",
    "sampling": "made by the selection",
    "cohort": "counted from the rate and the roster",
    "inside": "made by the selection",
    "rates": "found by calibration",
    "scales": "found by calibration",
    "correlation": "made of bands",
    "other_releases": "planned by what makes them",
    "training": "written by the node",
    "trained": "said by the model that is built",
}
"""Arguments that are no key, with the reason."""


def test_a_key_is_called_like_the_argument_that_it_gives() -> None:
    without = set()
    for key in all_keys():
        group, _, name = key.rpartition(".")
        if group in MADE_BY and name not in arguments(MADE_BY[group]):
            without.add(key)
    assert without == set(OF_THE_APP)


def test_every_argument_is_the_last_word_of_a_key_or_has_none() -> None:
    groups = {*MADE_BY, "", "task", "simulation"}
    keys = [key for key in all_keys() if key.rpartition(".")[0] in groups]
    words = {word for key in keys for word in key.split(".")} | {chosen_by("selection")}
    made = arguments((*PLANS, *LAWS, *RULES, NoiseSchedule, RecordPlan))
    assert made - words == set(NO_KEYS)


def test_the_app_refuses_more_nodes_than_declared_and_spends_nothing(tmp_path: Path) -> None:
    settings = compose_settings(
        [
            "task.num_clients=4",
            "rounds=1",
            "roster_timeout=0.1",
            f"output_dir={tmp_path}",
            "run_name=run",
        ]
    )
    grid = LocalGrid(lambda message, partition: None, 8)
    with pytest.raises(RosterTooLarge, match=r"num_clients=8, or .*roster_may_grow=True"):
        train(grid, settings, run_id="1")
    assert not grid.sent
    with PrivacyLedger.read(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.rounds_spent == 0


def test_words_of_too_few_bits_name_the_key_with_enough_of_them() -> None:
    settings = compose_settings(["privacy=distributed", "privacy.secure_sum.bits=8"])
    with pytest.raises(OptionError, match=r"8 bits .* write secure_sum\.bits=10$"):
        make_plan(settings)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: PrivacyBudget(epsilon=-1.0, delta=1e-5), "epsilon"),
        (lambda: PrivacyBudget(epsilon=1.0, delta=2.0), "delta"),
        (lambda: PrivacyBudget(epsilon="1", delta=1e-5), "epsilon"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: PrivacyBudget(epsilom=1.0), "epsilom"),  # type: ignore[call-arg]  # wrong on purpose
    ],
    ids=["a value", "a rate", "a type", "a name"],
)
def test_an_error_carries_its_option_and_keeps_it_between_processes(
    make: Callable[[], object], option: str
) -> None:
    with pytest.raises(OptionError, match=option) as refused:
        make()
    assert refused.value.option == option
    sent = pickle.loads(pickle.dumps(refused.value))
    assert (type(sent), str(sent), sent.option) == (
        type(refused.value),
        str(refused.value),
        option,
    )
