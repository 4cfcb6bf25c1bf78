"""A Flower `NumPyClient` that trains by DP-SGD and records its spending at its node.

    >>> def client_fn(context: Context) -> NumPyClient:
    ...     model, _ = private_module(MyModel())
    ...     return OpacusClient.on_node(
    ...         context, model, lambda: DataLoader(my_records()), plan=plan  # a RecordPlan
    ...     )
    >>> app = numpy_client_app(client_fn)

Each participation is written to the node's ledger before a record is read. Unlike Flower's
`Context.state`, the ledger survives a handler that raises, a dead process, a restarted SuperNode,
another run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self

from flwr.app import Context, MessageType
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from torch import nn
from torch.utils.data import DataLoader

from fl_dp.accounting import NeighboringRelation, PrivacyBudget, PrivacyBudgetExhausted
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import NodeLedger, Witness
from fl_dp.ledger.node import Account, RunLimit, Use
from fl_dp.mechanisms import SecureRandom
from fl_dp.model_arrays import sent_names, set_arrays, trained_names
from fl_dp.plan import RecordPlan
from fl_dp.user_code import Contained

from .model_exchange import trained_arrays
from .owner.node_privacy import NodePrivacy, in_simulation
from .per_record.dp_sgd import DPSGD, PrivateSteps, train_on_noise
from .per_record.fit_for_dp_sgd import (
    require_trainable_privately,
    trained_parameters,
)
from .per_record.record_source import Source, record_source_fn
from .per_record.record_workers import require_workers
from .unfinished_participation import RunIsOver, UnfinishedParticipation

logger = logging.getLogger("flwr.fl_dp.client")

Loader = Source | Callable[[], Source]


class _NothingToRelease(Exception):
    """Nothing may be released of the charged records."""


class OpacusClient(NumPyClient):
    """Trains any torch module with record-level privacy.

    Privacy: the plan's (epsilon, delta) for one record of this client, add/remove neighbours (or as
    the plan says), against anyone who sees every model it sends, the server included, over
    everything that the ledger's account ever releases. Nothing of a reply depends on a record
    before the charge. A client whose budget is spent, or whose model or ledger can't be used, sends
    the model back as it came. After the charge a reply is always the planned steps of DP-SGD, of
    the records that can be read and trained on. If no data can be read, or training fails, it is
    noise around the model. Its arrays and keys are as always, and it does not say why. Not hidden:
    that it replied, how long it took, and whether its source's budget is spent.

    A record whose reading ends a loader's worker, or outlasts the loader's `timeout`, counts as
    zero, alone. One that ends the process, or fails all of the training, shows once in a Flower
    run: the node marks it beside its ledger's file, and contributes nothing more to that run.
    There is no mark in a simulation, which protects nobody, or for a ledger in a database.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Loader,
        *,
        plan: RecordPlan,
        ledger: NodeLedger | str | Path,
        account: Account,
        budget: PrivacyBudget | None = None,
        limit: RunLimit | None = None,
        dp_sgd: DPSGD | None = None,
        fingerprint_of: Callable[[DataLoader[Any]], str] | None = None,
        rng: SecureRandom | None = None,
        witness: Witness | None = None,
        use: Use | None = None,
    ) -> None:
        """Set up a client.

        Args:
            model: A model on the device to train on; see `private_module` if Opacus refuses it.
            loader: A data set, or a loader of all of it (`RecordSource`), of `Persons` where these
                are the plan's unit. Or a function that
                returns one, called after the charge: then unreadable data show no error.
            plan: The plan of one participation, with the budget that the run asks for.
            ledger: The node's ledger, or its file or database URL.
            account: The account to charge. Its source alone decides whether a charge fits. If data
                of this fingerprint are exhausted under another source, the answer is noise.
            budget: The owner's cap over all runs; None: no cap.
            limit: Limit of this run alone. None: the plan's budget, over all runs without a limit
                of their own name.
            dp_sgd: How to train; `DPSGD()` by default.
            fingerprint_of: Computes the account's fingerprint once the data were read.
            rng: Source of noise and coins; a fresh secure one by default.
            witness: Compared with the ledger whenever its file or database is opened.
            use: The training's purpose, for the ledger.

        Raises:
            ValueError: DP-SGD can't train the model, the loader would not be used whole, the
                account is of other units than the plan, or an add-or-remove-one plan lacks
                `expected_batch_size`.
        """
        require_trainable_privately(model)
        how = dp_sgd or DPSGD()
        if (
            plan.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
            and how.expected_batch_size is None
        ):
            raise ValueError(
                "add-or-remove-one hides how many records there are: divide by a public constant, "
                "DPSGD(expected_batch_size=...), or promise zero-out"
            )
        if account.unit != plan.unit:
            raise ValueError(
                f"DP-SGD protects {plan.unit}s, but the account is of a {account.unit}"
            )
        self._model = model
        self._source_fn = record_source_fn(loader, unit=plan.unit)
        self._loader = loader if isinstance(loader, DataLoader) else None
        self._plan = plan
        self._ledger = ledger
        self._account = account
        self._budget = budget
        self._limit = limit or RunLimit(run="a run without a name", budget=plan.budget)
        self._how = how
        self._fingerprint_of = fingerprint_of
        self._rng = rng
        self._witness = witness
        self._use = use

    @classmethod
    def on_node(
        cls,
        context: Context,
        model: nn.Module,
        loader: Loader,
        *,
        plan: RecordPlan,
        unit: int = 0,
        config: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> Self:
        """Return a client with the ledger, name and cap of the node's owner.

        If the owner's `dp-record-epsilon` is below the plan's budget, more noise keeps that
        promise to each record over all planned rounds (`RecordPlan.within`). Where nobody
        names a ledger, a simulated node has one in `~/.fl-dp/simulations/run-RUN_ID`.

        Args:
            context: The node's context.
            model: As in the constructor.
            loader: As in the constructor.
            plan: As in the constructor.
            unit: Index among the node's privacy units.
            config: The message's config; in a simulation it can name a folder for ledgers.
            **rest: `dp_sgd`, `fingerprint_of` and `rng` of the constructor.

        Raises:
            ValueError: As the constructor, or a real node was started without a ledger.
        """
        node = NodePrivacy.from_context(context, config or {}, unit=unit)
        own = node.plan(plan)
        if own != plan:
            logger.info(
                "the owner allows %s of the run's %g: noise multiplier %.4g, not %.4g",
                Guarantee.of(own),
                plan.budget.epsilon,
                own.noise_multiplier,
                plan.noise_multiplier,
            )
        return cls(
            model,
            loader,
            plan=own,
            ledger=node.required_ledger,
            account=node.account(unit=own.unit),
            budget=node.cap,
            limit=node.limit(own.budget, training=own.training),
            witness=node.witness,
            use=node.use(MessageType.TRAIN),
            **rest,
        )

    def require_sent(self, names: Collection[str], config: Mapping[str, Any]) -> None:
        """Check that a server sends as many arrays as are trained: others would only get noise.

        Raises:
            ValueError: It does not.
        """
        trained = trained_names(self._model)
        if len(names) != len(trained):
            raise ValueError(
                f"the server sends {len(names)} arrays, and this client trains {len(trained)}: "
                "start from fl_dp.clients.exchanged_arrays(model), so that nothing else is "
                "released"
            )

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train from `parameters`; return them unchanged if that can't be paid for or started.

        Returns:
            The arrays, 1 (the number of records stays private), and no metrics: each would be a
            release.
        """
        # Errors that end here are raised before the charge: by message, model or ledger.
        with Contained("training can't start; this client contributes nothing"):
            try:
                return self._participate(parameters, config), 1, {}
            except PrivacyBudgetExhausted as error:
                logger.info("%s; this client contributes nothing", error)
            except RunIsOver as error:
                logger.error("%s; this client contributes nothing", error)
        return parameters, 1, {}

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Refuse: measuring private records would be an uncharged release.

        Raises:
            ValueError: Always. Evaluate at the server, on public data, or override this.
        """
        raise ValueError(
            "evaluating on a client's private records would be an uncharged release: evaluate at "
            "the server with evaluate_fn, or ask for charged metrics"
        )

    def _participate(self, parameters: NDArrays, config: dict[str, Scalar]) -> NDArrays:
        """Charge, and return what leaves; raise only before the charge.

        Raises:
            RunIsOver: An earlier participation in the run did not end.
            PrivacyBudgetExhausted: The charge does not fit.
        """
        plan, mark = self._plan, self._mark()
        if mark is not None:
            mark.require_absent()
        # Errors that need no record are raised first, and cost nothing.
        set_arrays(self._model, parameters, sent_names(self._model, parameters))
        participation = PrivateSteps(self._model, plan=plan, how=self._how, rng=self._rng)
        if self._loader is not None:
            require_workers(self._loader)
        with self._opened() as ledger:
            charge = ledger.charge_unread(
                self._account,
                plan.event,
                count=plan.steps,
                budget=self._budget,
                limit=self._limit,
                what=f"round {config.get('server-round', 'unknown')!s}",
                neighboring_relation=plan.neighboring_relation,
                use=self._use,
                declared_gradients=self._how.declared_gradients,
            )
            # From here on records are read: whatever happens, a reply has noise.
            with Contained("training failed; this client sends noise around the model"):
                try:
                    if mark is not None:
                        mark.put()
                    self._train(ledger, charge, participation)
                    reply = self._reply(parameters, participation.template.parameters)
                    if mark is not None:
                        mark.remove()
                    return reply
                except _NothingToRelease as error:
                    logger.info("%s: this client sends noise around the model", error)
                    if mark is not None:
                        mark.remove()
        return self._noise(parameters, participation.records)

    def _mark(self) -> UnfinishedParticipation | None:
        """This run's mark; None without a run or a file that a real node keeps."""
        ledger = self._ledger
        if self._use is None or isinstance(ledger, NodeLedger) or "://" in str(ledger):
            return None
        if in_simulation():
            return None
        return UnfinishedParticipation.beside(ledger, self._account, self._use)

    def _train(self, ledger: NodeLedger, charge: int, participation: PrivateSteps) -> None:
        """Read and train.

        Raises:
            _NothingToRelease: The data have spent their budget elsewhere.
            Exception: Any error of the data set and the loader.
        """
        source = self._source_fn()
        participation.read(source)
        name = self._account.fingerprint
        if self._fingerprint_of is not None:
            name = self._fingerprint_of(source.loader)
        if name is not None and not ledger.name_data(charge, name):
            raise _NothingToRelease(
                "these data have spent their budget under another name; they spend nothing now"
            )
        participation.train()

    def _noise(self, parameters: NDArrays, records: int) -> NDArrays:
        """Return `parameters` after the planned steps, without any record."""
        # An error here is the optimizer's, whatever the records are.
        with Contained("no step can be taken; this client contributes nothing"):
            set_arrays(self._model, parameters, sent_names(self._model, parameters))
            train_on_noise(
                self._model, records=records, plan=self._plan, how=self._how, rng=self._rng
            )
            return self._reply(parameters, trained_parameters(self._model))
        return parameters

    def _reply(self, received: NDArrays, trained: Mapping[str, nn.Parameter]) -> NDArrays:
        return trained_arrays(sent_names(self._model, received), received, trained)

    def _opened(self) -> AbstractContextManager[NodeLedger]:
        if isinstance(self._ledger, NodeLedger):
            return nullcontext(self._ledger)
        return NodeLedger.open(self._ledger, witness=self._witness)
