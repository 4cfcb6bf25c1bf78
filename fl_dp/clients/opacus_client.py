"""A Flower `NumPyClient` that trains by DP-SGD and keeps account of it on its own node.

    >>> def client_fn(context: Context) -> NumPyClient:
    ...     model, _ = private_module(MyModel())
    ...     return OpacusClient(
    ...         model,
    ...         DataLoader(my_records),
    ...         plan=plan,  # an ExamplePlan
    ...         ledger="/data/ledger.db",
    ...         account=Account(unit="example", source="ward-7"),
    ...     )
    >>> app = numpy_client_app(client_fn)

Each participation is written to the node's ledger before it starts. It survives what Flower's
`Context.state` does not: a handler that raises, a process that dies, a restarted SuperNode, another
run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from torch import nn
from torch.utils.data import DataLoader

from fl_dp.accounting import (
    Account,
    ExamplePlan,
    NeighboringRelation,
    NodeLedger,
    PrivacyBudget,
    PrivacyBudgetExhausted,
)
from fl_dp.mechanisms import SecureRandom

from .dp_sgd import DPSGD, train_with_dp_sgd
from .fit_for_dp_sgd import load_exchanged, require_trainable_privately, trained_arrays

logger = logging.getLogger("flwr.fl_dp.client")


class OpacusClient(NumPyClient):
    """Trains any torch module with record-level privacy.

    Privacy: the plan's (epsilon, delta) for one record of this client, add/remove neighbours (or as
    the plan says), against anyone who sees every model that it sends, the server included, over
    everything that the ledger's account ever releases. A client whose budget is spent, or whose
    training fails, sends back the model as it came: arrays and keys are those of any other reply.
    It does not say why, and how many records there are stays here, too. That it replied, how long
    it took, and that an update is exactly zero is not hidden. None of that is about one record, as
    long as the data set can be read and made into batches whatever its records are: one that can't
    ends the training, and shows by it.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: DataLoader[Any],
        *,
        plan: ExamplePlan,
        ledger: NodeLedger | str | Path,
        account: Account,
        budget: PrivacyBudget | None = None,
        dp_sgd: DPSGD | None = None,
        trainable_only: bool = False,
        rng: SecureRandom | None = None,
    ) -> None:
        """Be a client.

        Args:
            model: On the device to train on; see `private_module` if Opacus refuses it.
            loader: Whose data set and collation are used; see `train_with_dp_sgd`.
            plan: What one participation is, and the budget that the run asks for.
            ledger: The node's ledger, or its file or database URL.
            account: Whose spending it is.
            budget: What may be spent in all, where the node's owner allows less than the plan's.
            dp_sgd: How to train; `DPSGD()` by default.
            trainable_only: Exchange the parameters that are not frozen, and nothing else.
            rng: Of noise and coins; a fresh secure one by default.

        Raises:
            ValueError: If DP-SGD can't train the model, or the account is not about records.
        """
        require_trainable_privately(model)
        how = DPSGD() if dp_sgd is None else dp_sgd
        if (
            plan.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
            and how.expected_batch_size is None
        ):
            raise ValueError(
                "add-or-remove-one hides how many records there are: divide by a public constant, "
                "DPSGD(expected_batch_size=...), or promise zero-out"
            )
        if account.unit != "example":
            raise ValueError(f"DP-SGD protects examples, but the account is of a {account.unit}")
        self._model = model
        self._loader = loader
        self._plan = plan
        self._ledger = ledger
        self._account = account
        self._budget = plan.budget if budget is None else budget
        self._how = how
        self._trainable_only = trainable_only
        self._rng = rng

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train from `parameters`, or return them as they are if that can't be paid for.

        Returns:
            The arrays, 1 (how many records there are is nobody's business), and no metrics: each
            would be a release of its own.
        """
        try:
            return self._train(parameters, config), 1, {}
        except PrivacyBudgetExhausted as exhausted:
            logger.info("%s; this client contributes nothing", exhausted)
        except Exception:
            logger.exception("training failed; this client contributes nothing")
        return parameters, 1, {}

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Refuse: what is measured on private records would be a release that nobody paid for.

        Raises:
            ValueError: Always. Evaluate at the server, on public data, or override this.
        """
        raise ValueError(
            "evaluating on a client's private records would be an uncharged release: evaluate at "
            "the server with evaluate_fn, or ask for charged metrics"
        )

    def _train(self, parameters: NDArrays, config: dict[str, Scalar]) -> NDArrays:
        load_exchanged(self._model, parameters, trainable_only=self._trainable_only)
        if isinstance(self._ledger, NodeLedger):
            return self._train_on(self._ledger, parameters, config)
        with NodeLedger.open(self._ledger) as ledger:
            return self._train_on(ledger, parameters, config)

    def _train_on(
        self, ledger: NodeLedger, parameters: NDArrays, config: dict[str, Scalar]
    ) -> NDArrays:
        plan = self._plan
        ledger.charge(
            self._account,
            plan.event,
            count=plan.steps,
            budget=self._budget,
            what=f"round {config.get('server-round', 'unknown')!s}",
            neighboring_relation=plan.neighboring_relation,
        )
        before = {name: each.clone() for name, each in self._constants()}
        with torch.enable_grad():
            train_with_dp_sgd(self._model, self._loader, plan=plan, how=self._how, rng=self._rng)
        for name, constant in self._constants():
            if not torch.equal(before[name], constant):
                raise ValueError(
                    f"training changed '{name}', which is no trainable parameter: records may have "
                    "met in it, and clipping bounds none of them. Use a model that leaves buffers "
                    "and frozen parameters alone"
                )
        return trained_arrays(self._model, parameters, trainable_only=self._trainable_only)

    def _constants(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what training must not change: floating-point buffers and frozen parameters."""
        yield from (each for each in self._model.named_buffers() if each[1].is_floating_point())
        yield from (each for each in self._model.named_parameters() if not each[1].requires_grad)
