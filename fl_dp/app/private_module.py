"""Your own PyTorch module, trained privately in this process on clients' data.

>>> trained = train_private(module, clients, epsilon=4.0, rounds=60, test=(images, labels))
>>> trained.accuracy, trained.guarantee
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.accounting import PoissonSampling, PrivacyBudget, Sampling, default_delta
from fl_dp.arguments import with_read_arguments
from fl_dp.clients import numpy_client_app
from fl_dp.clients.cohort import LocalTraining, UnitData, train_alone
from fl_dp.clients.owner.node_config import PARTITION_ID_KEY
from fl_dp.clients.per_record.own_copies import own_copy_of
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import Population, PrivacyLedger, enter_unprotected
from fl_dp.model_arrays import get_arrays, set_arrays, trained_names
from fl_dp.option_errors import OptionError, require_positive
from fl_dp.plan import Plan
from fl_dp.promise import NO_PRIVACY, delta_rounded_up, is_large_delta
from fl_dp.protocol.message_keys import COINS_SEED_KEY
from fl_dp.statement import PrivacyStatement, privacy_statement
from fl_dp.strategies import DPFedAvg, UnprotectedFedAvg
from fl_dp.strategies.companions import ShouldStop
from fl_dp.strategies.selection import selection_of
from fl_dp.tasks.training import evaluate, one_thread, plain_sgd

from .client_arrays import Data, Pair, Persons, client_parts, fresh, population_of_parts
from .in_process import flower_in_silence
from .local.script_simulation import play
from .module_fit import are_truth_values, dtype_of, require_module, require_module_fits
from .pictures import COLOURS, give_shared_look, new_picture, save_picture, score_axis
from .trained_ahead import TrainedAhead
from .trial_step import require_trial_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fit: TypeAlias = Callable[[nn.Module, Tensor, Tensor], None]
"""Trains a module in place on records and labels of one client."""

_SAMPLING_RATE = 0.25  # of `fl-dp run`

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateModule:
    """Result of `train_private`.

    Attributes:
        model: Copy of the module with the last released weights, in eval mode.
        history: One row a released model, with its `round`, the first at 0. With test data it has
            `loss` and `accuracy`, or `mean_absolute_error`, and with a promise the `epsilon` spent
            so far. `pandas.DataFrame(trained.history)` reads it.
        statement: What was promised, to whom, under which assumptions; None for a baseline.
    """

    model: nn.Module
    history: list[dict[str, float]]
    statement: PrivacyStatement | None

    @property
    def accuracies(self) -> tuple[float, ...]:
        """On the test data, in [0, 1]: before the training, and after each release.

        Empty without test data, and for labels that are numbers.
        """
        return self._all("accuracy")

    @property
    def accuracy(self) -> float:
        """The last accuracy; NaN without test data, and for labels that are numbers."""
        return self.history[-1].get("accuracy", math.nan)

    @property
    def mean_absolute_errors(self) -> tuple[float, ...]:
        """As `accuracies`, for labels that are numbers, in their unit."""
        return self._all("mean_absolute_error")

    @property
    def mean_absolute_error(self) -> float:
        """The last mean absolute error, in the labels' unit; NaN without one."""
        return self.history[-1].get("mean_absolute_error", math.nan)

    @property
    def guarantee(self) -> Guarantee | None:
        """The promise with all that epsilon means nothing without; None for a baseline."""
        return None if self.statement is None else self.statement.guarantee

    @property
    def epsilon(self) -> float:
        """Epsilon of the promise, at `delta`; infinite for a baseline."""
        return math.inf if self.statement is None else self.statement.best_epsilon

    @property
    def delta(self) -> float:
        """Delta of the promise; 0 for a baseline."""
        return 0.0 if self.statement is None else self.statement.delta

    def plot(self, target: str | Path | None = None) -> Figure:
        """Draw the accuracy or error on the test data over the rounds, with the promise above it.

        Args:
            target: File of the picture, for example `accuracy.png`; None: none is written.

        Returns:
            The figure, which a notebook shows.

        Raises:
            ImportError: There is no matplotlib.
        """
        picture = new_picture(size=(6.0, 3.6))
        if picture is None:
            raise ImportError("plot needs matplotlib: pip install 'fl-dp[viewer]' brings it")
        figure, (panel,) = picture
        name = "accuracy" if self.accuracies else "mean_absolute_error"
        values = self._all(name)
        panel.plot(range(len(values)), values, color=COLOURS[0], linewidth=1.8)
        if self.accuracies:
            panel.set_ylim(score_axis(min(values), max(values)))
        if not values:
            panel.text(0.5, 0.5, "not measured: there was no test data", ha="center")
        panel.set_xlabel("round")
        panel.set_ylabel(f"{name.replace('_', ' ')} on test data" if values else "")
        panel.set_title(str(self.guarantee or NO_PRIVACY), fontsize=9, wrap=True)
        panel.locator_params(axis="x", integer=True)
        if target is None:
            give_shared_look(figure)
        else:
            save_picture(figure, Path(target))
        return figure

    def _all(self, name: str) -> tuple[float, ...]:
        return tuple(row[name] for row in self.history if name in row)


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
    weight_cap: float | None = None,
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
    seed: int | None = None,
    baseline: bool = False,
    should_stop: ShouldStop | None = None,
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
        weight_cap: Records that earn a client the full weight, `min(records / weight_cap, 1)`.
            None: all clients weigh 1.
        plan: Another promise, for example a `LocalPlan`, in place of epsilon, rounds, delta,
            sampling_rate and clipping_norm.
        test: Public data to measure the model before the training and after each round. They may
            share no memory with the clients' data; equal rows are not looked for.
        learning_rate: Step size of a client's SGD.
        epochs: A client's passes over its data per round.
        batch_size: Records per step.
        fit: Trains a client in place of that SGD, without `learning_rate`, `epochs` and
            `batch_size`: `fit(module, records, labels)` changes the module in place, by any loss
            and optimizer. It must store nothing between calls.
        strategy: The server optimizer; Flower's `FedAvg()` by default.
        ledger: File or database URL of the account of these clients, to which the budgets of all
            trainings in it add up. Other data than those that it was made for are refused; the same
            rows at other clients are counted as records. None: a file that is thrown away, so a
            second training of the same data is not added to the first.
        name: The training's name in the ledger. The same name and promise continue what was
            interrupted; a new name is a further training, for example of `trained.model`.
        cap: Largest total of all trainings in the ledger, fixed when it is made.
        seed: At least 0. Fixes who gets which rows of a partition and clients' coins, such as
            dropout and the order of records; the first weights are the module's own. Noise, cohorts
            and the sampling of records never follow from it.
        baseline: Whether to train without clipping and noise, by the same steps, for comparison.
            Nothing is promised: a ledger's account has no total from then on, and one with a cap
            refuses it. Of the budget only rounds is needed.
        should_stop: Called after each release, with its round and Flower's result so far, for
            example `lambda server_round, result: server_round == 10`. True ends the training
            there; the whole budget stays spent in the ledger's account.
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
    require_module(module)
    if seed is not None and not 0 <= seed < 2**63:
        raise OptionError(f"seed must lie in [0, 2^63), got {seed}", option="seed")
    parts, public = client_parts(
        clients, partition, test, persons=persons, dtype=dtype_of(module), seed=seed or 0
    )
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
    _require_one_promise(plan, budget, num_clients=len(parts), baseline=baseline)
    require_trial_step(module, fit, parts)
    measured = own_copy_of(module)
    history: list[dict[str, float]] = []

    with ExitStack() as opened:
        people = None if ledger is None else population_of_parts(parts)
        account: dict[str, Any] = {"cap": cap, "population": people}
        private: DPFedAvg | None = None
        if baseline:
            trains: DPFedAvg | UnprotectedFedAvg = _baseline(strategy, plan, budget, weight_cap)
            if ledger is not None:
                account |= {"delta": delta or default_delta(len(parts))}
                entry = "baseline" if name is None else name
                enter_unprotected(ledger, entry, "a training without noise", **account)
        else:
            account |= {"ledger": _kept(ledger, opened), "name": name}
            account |= {"num_clients": len(parts), "trained": names, "weight_cap": weight_cap}
            trains = private = _strategy(strategy, plan, budget, **account)
            opened.callback(private.ledger.close)
            device = next(module.parameters()).device  # it trains in this process
            private.loop.sample_by(NoiseSource(device).for_host)
            _warn_of_large_delta(
                private, "a delta" if plan is None else "a plan whose budget has a delta"
            )
        num_rounds = rounds if plan is None else plan.rounds
        assert num_rounds is not None  # one of them is there
        on_round = opened.enter_context(_bar(num_rounds)) if progress else _silent

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            on_round(server_round)
            row: dict[str, float] = {}
            if public is not None:
                set_arrays(measured, arrays.to_numpy_ndarrays(), names)
                measure = "accuracy"
                if public[1].is_floating_point():
                    measure = "mean_absolute_error"
                row["loss"], row[measure] = evaluate(measured, *public)
            measures = MetricRecord({**row}) if row else None
            if private is not None:
                row["epsilon"] = private.ledger.running_epsilon() if server_round else 0.0
            history.append({"round": server_round} | row)
            return measures

        config = ConfigRecord({} if seed is None else {COINS_SEED_KEY: seed})
        server, released = ServerApp(), []

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            result = trains.start(
                grid,
                ArrayRecord(first),
                num_rounds,
                train_config=config,
                evaluate_fn=after,
                should_stop=should_stop,
            )
            released.append(result.arrays)

        opened.enter_context(one_thread())
        client = numpy_client_app(lambda context: _Client(module, parts, fit, ahead, context))
        before = None if ahead is None else ahead.train
        play(server, client, num_nodes=len(parts), run_config={}, before=before)
        statement = None if private is None else privacy_statement(private.ledger)
    set_arrays(measured, released[0].to_numpy_ndarrays(), names)
    return PrivateModule(model=measured.eval(), history=history, statement=statement)


def _require_one_promise(
    plan: Plan | None, budget: Mapping[str, float], *, num_clients: int, baseline: bool
) -> None:
    """Check for either a plan or the arguments that make one."""
    if plan is None:
        required = ("rounds",) if baseline else ("epsilon", "rounds")
        if lacks := [name for name in required if name not in budget]:
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
    if plan.num_clients != num_clients or plan.hosting.max_units > 1:
        raise ValueError(
            f"the plan must be of num_clients={num_clients}, each at a node of its own, got "
            f"num_clients={plan.num_clients}, {plan.hosting.limit}={plan.hosting.max_units}"
        )


def _kept(ledger: str | Path | None, opened: ExitStack) -> str | Path:
    """The ledger's place; one that is thrown away, and says so, where none was named."""
    if ledger is not None:
        return ledger
    logger.warning(
        "No ledger was named, so this one is thrown away: a second training of the same data is "
        "not added to it. Write train_private(..., ledger='ledger.db') to keep it."
    )
    return Path(opened.enter_context(tempfile.TemporaryDirectory())) / "ledger.db"


def _strategy(
    strategy: Strategy | None,
    plan: Plan | None,
    budget: Mapping[str, Any],
    *,
    num_clients: int,
    trained: tuple[str, ...],
    weight_cap: float | None,
    ledger: str | Path,
    name: str | None,
    cap: PrivacyBudget | None,
    population: Population | None,
) -> DPFedAvg:
    if plan is None:
        arguments: dict[str, Any] = {"sampling_rate": _SAMPLING_RATE, "trained": trained}
        arguments |= {"ledger": ledger, "name": name, "cap": cap, "population": population}
        arguments |= {"weight_cap": weight_cap, **budget}
        return DPFedAvg.with_budget(strategy, num_clients=num_clients, **arguments)
    ready = replace(plan.calibrated() if plan.is_draft else plan, trained=trained)
    opened = PrivacyLedger.open(ledger, ready, name=name, cap=cap, population=population)
    try:
        return DPFedAvg(strategy, plan=ready, ledger=opened, weight_cap=weight_cap)
    except BaseException:
        opened.close()
        raise


def _baseline(
    strategy: Strategy | None,
    plan: Plan | None,
    budget: Mapping[str, Any],
    weight_cap: float | None,
) -> UnprotectedFedAvg:
    """The same rounds without clipping and noise."""
    law: Sampling = PoissonSampling(sampling_rate=budget.get("sampling_rate", _SAMPLING_RATE))
    return UnprotectedFedAvg(
        strategy,
        selection=selection_of(law if plan is None else plan.sampling),
        weight_cap=weight_cap,
    )


def _warn_of_large_delta(private: DPFedAvg, argument: str) -> None:
    plan = private.ledger.plan
    if is_large_delta(plan.budget.delta):
        logger.warning(
            "delta %s is large: with that probability epsilon may not hold for a %s; fine for "
            "trying out, for real data write %s of 1e-5 or less",
            delta_rounded_up(plan.budget.delta),
            plan.unit,
            argument,
        )


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
