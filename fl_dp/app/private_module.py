"""Your own PyTorch module, trained privately in this process on clients' data.

>>> trained = train_private(module, clients, epsilon=4.0, rounds=60, test=(images, labels))
>>> trained.accuracy, trained.epsilon
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.accounting import PrivacyBudget
from fl_dp.arguments import with_read_arguments
from fl_dp.clients import numpy_client_app
from fl_dp.clients.cohort import LocalTraining, UnitData, train_alone
from fl_dp.clients.owner.node_config import PARTITION_ID_KEY
from fl_dp.clients.per_record.own_copies import own_copy_of
from fl_dp.ledger import Population, PrivacyLedger
from fl_dp.model_arrays import get_arrays, set_arrays, trained_names
from fl_dp.option_errors import require_positive
from fl_dp.plan import Plan
from fl_dp.promise import delta_rounded_up, is_large_delta
from fl_dp.statement import PrivacyStatement, privacy_statement
from fl_dp.strategies import DPFedAvg
from fl_dp.tasks.training import evaluate, one_thread, plain_sgd

from .client_arrays import (
    Data,
    Pair,
    Persons,
    are_truth_values,
    client_parts,
    dtype_of,
    fresh,
    population_of_parts,
    require_module_fits,
)
from .in_process import flower_in_silence
from .local.script_simulation import play
from .trained_ahead import TrainedAhead
from .trial_step import require_trial_step

Fit: TypeAlias = Callable[[nn.Module, Tensor, Tensor], None]
"""Trains a module in place on records and labels of one client."""

_SAMPLING_RATE = 0.25  # of `fl-dp run`

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateModule:
    """Result of `train_private`.

    Attributes:
        model: Copy of the module with the last released weights, in eval mode.
        accuracies: On the test data, in [0, 1]: before the training, and after each release. Empty
            without test data, and for labels that are numbers.
        mean_absolute_errors: The same for labels that are numbers, in their unit.
        statement: What was promised, to whom, under which assumptions.
    """

    model: nn.Module
    accuracies: tuple[float, ...]
    mean_absolute_errors: tuple[float, ...]
    statement: PrivacyStatement

    @property
    def accuracy(self) -> float | None:
        """The last accuracy; None without test data, and for labels that are numbers."""
        return self.accuracies[-1] if self.accuracies else None

    @property
    def mean_absolute_error(self) -> float | None:
        """The last mean absolute error, in the labels' unit; None without one."""
        return self.mean_absolute_errors[-1] if self.mean_absolute_errors else None

    @property
    def epsilon(self) -> float:
        """Epsilon of the promise, at `delta`."""
        return self.statement.best_epsilon

    @property
    def delta(self) -> float:
        """Delta of the promise."""
        return self.statement.delta


@with_read_arguments("module", "clients", "test", "strategy", "persons")
def train_private(
    module: nn.Module,
    clients: Sequence[Data] | Data,
    *,
    partition: int | Sequence[Sequence[int]] | None = None,
    persons: Persons | None = None,
    epsilon: float | None = None,
    rounds: int | None = None,
    delta: float | None = None,
    sampling_rate: float | None = None,
    clipping_norm: float | None = None,
    plan: Plan | None = None,
    test: Data | None = None,
    learning_rate: float = 0.1,
    epochs: int = 1,
    batch_size: int = 32,
    fit: Fit | None = None,
    strategy: Strategy | None = None,
    ledger: str | Path | None = None,
    name: str | None = None,
    cap: PrivacyBudget | None = None,
    progress: bool = True,
) -> PrivateModule:
    """Train a module over simulated clients; each release is differentially private.

    Privacy: as `DPFedAvg`, for the plan that the budget makes: one client's whole contribution is
    the unit, zero-out neighbours, against anyone who sees every released model. The caller has all
    data: clients are protected from those who get the model. Test data are public.

    Args:
        module: Any module; it is not changed. It maps records `(n, ...)` to `(n, classes)`, or to
            `(n, 1)` where labels are numbers. Its parameters that are not frozen are trained and
            released. All else stays as it is: a buffer that training changes, such as a
            BatchNorm's running statistics, is refused, unless its part is frozen and in `eval()`.
        clients: Data of each client; or one data set, with a `partition`: two arrays, a PyTorch
            data set of pairs, or one of Hugging Face with a column of records and one named
            `label`. They stay as they are. Integer labels `(n,)` or `(n, 1)` are classes from 0;
            floating-point labels are numbers.
        partition: For one data set: each client's rows, or the number of clients, to whom rows are
            dealt evenly and at random.
        persons: For one data set: each row's person, or the name of the column that has it. All
            rows of a person go to one client.
        epsilon: Budget of the whole training.
        rounds: Number of rounds.
        delta: Delta of the budget; by default half of what the ledger's account has left, and in a
            new one without a cap the number of clients to the power of -1.1.
        sampling_rate: Probability of each client in each round; 0.25 by default.
        clipping_norm: L2 bound on one client's update; by default it follows the median norm.
        plan: Another promise, for example a `LocalPlan`, in place of the five arguments above.
        test: Public data to measure the model before the training and after each round. They may
            share no memory with the clients' data; equal rows are not looked for.
        learning_rate: Step size of a client's SGD.
        epochs: A client's passes over its data per round.
        batch_size: Records per step.
        fit: Trains a client in place of that SGD, without `learning_rate`, `epochs` and
            `batch_size`. It must store nothing between calls.
        strategy: The server optimizer; Flower's `FedAvg()` by default.
        ledger: File or database URL of the account of these clients, to which the budgets of all
            trainings in it add up. Other data than those that it was made for are refused; the same
            rows at other clients are counted as records. None: a file that is thrown away, so a
            second training of the same data is not added to the first.
        name: The training's name in the ledger. The same name and promise continue what was
            interrupted; a new name is a further training, for example of `trained.model`.
        cap: Largest total of all trainings in the ledger, fixed when it is made.
        progress: Whether to show a bar of rounds instead of Flower's log.

    Raises:
        ValueError: Data, module and arguments do not fit together; nothing was spent.
        TypeError: An argument has the wrong type; nothing was spent.
        PrivacyBudgetExhausted: The ledger has nothing left, or less than the budget.
    """
    if ledger is None and (name, cap) != (None, None):
        raise ValueError(
            "name and cap are of a ledger that is kept: write ledger='ledger.db', or leave them out"
        )
    parts, public = client_parts(clients, partition, test, persons=persons, dtype=dtype_of(module))
    samples = parts if public is None else [*parts, public]
    require_module_fits(module, samples)
    names = trained_names(module)
    if not names:
        raise ValueError(
            "every parameter of the module is frozen, so there is nothing to train: leave "
            "requires_grad_(False) out for the part that is to learn"
        )
    if are_truth_values(samples):
        logger.warning(
            "the labels are the numbers 0.0 and 1.0, which are predicted as numbers and have a "
            "mean absolute error; for two classes with an accuracy give integers and two outputs"
        )
    first = {name: Array(values) for name, values in get_arrays(module, names).items()}
    ahead = None
    if fit is None:
        require_positive(learning_rate=learning_rate)  # at 0 a budget would be spent on noise alone
        training = plain_sgd(learning_rate=learning_rate, epochs=epochs, batch_size=batch_size)
        fit, ahead = _fit(training), TrainedAhead(module, parts, training)
    arguments = {
        "epsilon": epsilon,
        "rounds": rounds,
        "delta": delta,
        "sampling_rate": sampling_rate,
        "clipping_norm": clipping_norm,
    }
    budget = {name: value for name, value in arguments.items() if value is not None}
    _require_one_promise(plan, budget, num_clients=len(parts))
    require_trial_step(module, fit, parts)
    measures: dict[str, list[float]] = {"accuracy": [], "mean_absolute_error": []}
    measured = own_copy_of(module)

    population = None if ledger is None else population_of_parts(parts)

    with ExitStack() as opened:
        if ledger is None:
            ledger = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "ledger.db"
            logger.warning(
                "No ledger was named, so this one is thrown away: a second training of the same "
                "data is not added to it. Write train_private(..., ledger='ledger.db') to keep it."
            )
        private = _strategy(
            strategy,
            plan,
            budget,
            num_clients=len(parts),
            trained=names,
            ledger=ledger,
            name=name,
            cap=cap,
            population=population,
        )
        opened.callback(private.ledger.close)
        device = next(module.parameters()).device  # it trains in this process
        private.loop.sample_by(NoiseSource(device).for_host)
        promised = private.ledger.plan.budget.delta
        if is_large_delta(promised):
            logger.warning(
                "delta %s is large: with that probability epsilon may not hold for a %s; fine "
                "for trying out, for real data write %s of 1e-5 or less",
                delta_rounded_up(promised),
                private.ledger.plan.unit,
                "a delta" if plan is None else "a plan whose budget has a delta",
            )
        on_round = opened.enter_context(_bar(private.planned_rounds)) if progress else _silent

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            on_round(server_round)
            if public is None:
                return None
            set_arrays(measured, arrays.to_numpy_ndarrays(), names)
            loss, value = evaluate(measured, *public)
            of_numbers = public[1].is_floating_point()
            measure = "mean_absolute_error" if of_numbers else "accuracy"
            measures[measure].append(value)
            return MetricRecord({"loss": loss, measure: value})

        server, released = ServerApp(), []

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            released.append(private.start(grid, ArrayRecord(first), evaluate_fn=after).arrays)

        opened.enter_context(one_thread())
        client = numpy_client_app(lambda context: _Client(module, parts, fit, ahead, context))
        before = None if ahead is None else ahead.train
        play(server, client, num_nodes=len(parts), run_config={}, before=before)
        statement = privacy_statement(private.ledger)
    set_arrays(measured, released[0].to_numpy_ndarrays(), names)
    return PrivateModule(
        model=measured.eval(),
        accuracies=tuple(measures["accuracy"]),
        mean_absolute_errors=tuple(measures["mean_absolute_error"]),
        statement=statement,
    )


def _require_one_promise(
    plan: Plan | None, budget: Mapping[str, float], *, num_clients: int
) -> None:
    """Check for either a plan or the arguments that make one."""
    if plan is None:
        if lacks := [name for name in ("epsilon", "rounds") if name not in budget]:
            raise ValueError(f"{lacks[0]} is missing: write epsilon=4.0 and rounds=60, or a plan")
        return
    if budget:
        name, value = next(iter(budget.items()))
        raise ValueError(f"the plan says what is promised: leave out {name}={value}")
    if plan.trained is not None:
        raise ValueError(
            "the module says what is trained: leave the plan's trained out, and freeze other parts "
            "by requires_grad_(False)"
        )
    if plan.num_clients != num_clients or plan.hosting.units_per_node > 1:
        raise ValueError(
            f"the plan must be of num_clients={num_clients}, each at a node of its own, got "
            f"num_clients={plan.num_clients}, units_per_node={plan.hosting.units_per_node}"
        )


def _strategy(
    strategy: Strategy | None,
    plan: Plan | None,
    budget: Mapping[str, Any],
    *,
    num_clients: int,
    trained: tuple[str, ...],
    ledger: str | Path,
    name: str | None,
    cap: PrivacyBudget | None,
    population: Population | None,
) -> DPFedAvg:
    if plan is None:
        arguments: dict[str, Any] = {"sampling_rate": _SAMPLING_RATE, "trained": trained}
        arguments |= {"ledger": ledger, "name": name, "cap": cap, "population": population}
        arguments |= dict(budget)
        return DPFedAvg.with_budget(strategy, num_clients=num_clients, **arguments)
    ready = replace(plan.calibrated() if plan.is_draft else plan, trained=trained)
    opened = PrivacyLedger.open(ledger, ready, name=name, cap=cap, population=population)
    try:
        return DPFedAvg(strategy, plan=ready, ledger=opened)
    except BaseException:
        opened.close()
        raise


def _silent(server_round: int) -> None:
    """Show nothing: Flower's log tells the rounds."""


@contextmanager
def _bar(rounds: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error in place of Flower's log; its warnings stay visible."""
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        flower_in_silence(below=logging.WARNING),
        Progress(*columns, console=Console(stderr=True)) as bar,
    ):
        task = bar.add_task("rounds", total=rounds)
        yield lambda server_round: bar.update(task, completed=server_round)


class _Client(NumPyClient):
    """Trains a copy of the module on one client's data, if it was not trained ahead."""

    def __init__(
        self,
        module: nn.Module,
        parts: Sequence[Pair],
        train: Fit,
        ahead: TrainedAhead | None,
        context: Context,
    ) -> None:
        self._module = module
        self._part = int(context.node_config[PARTITION_ID_KEY])
        self._records, self._labels = parts[self._part]
        self._train, self._ahead = train, ahead

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        if self._ahead is not None:
            trained = self._ahead.arrays_of(self._part, parameters)
            if trained is not None:
                return trained, len(self._labels), {}
        # A copy for each client: what a module stores outside its state must not reach the next.
        model = own_copy_of(self._module)
        names = trained_names(model)
        set_arrays(model, parameters, names)
        if len(self._labels):
            self._train(model, *fresh((self._records, self._labels)))
        return list(get_arrays(model, names).values()), len(self._labels), {}


def _fit(training: LocalTraining) -> Fit:
    """A function that trains a client by SGD."""

    def train(model: nn.Module, records: Tensor, labels: Tensor) -> None:
        seed = torch.initial_seed()  # the client's own coins
        train_alone(model, UnitData(features=records, labels=labels, seed=seed), training)

    return train
