"""Any Flower strategy as the server optimizer of private rounds.

The inner strategy never meets a client. It writes a round's message on a stand-in grid, and gets
one synthetic reply whose arrays are already private: all it does with them is post-processing. Its
state (momentum, second moments) comes from released models alone and leaks nothing beyond them.

    >>> optimizer = ServerOptimizer(FedAdam(eta=0.03))
    >>> instruction = optimizer.instruct(1, model, ConfigRecord(), roster)
    >>> model, metrics = optimizer.step(1, private_model, instruction)
    >>> save_file(optimizer.state(), "optimizer.safetensors")
    >>> ServerOptimizer(FedAdam(eta=0.03)).restore(load_file("optimizer.safetensors"))
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NoReturn

import flwr.serverapp.strategy as message_api
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Strategy
from numpy.typing import NDArray

from fl_dp.protocol.flower_compat import give_id
from fl_dp.updates import VectorLayout
from fl_dp.updates.arrays import values_of
from fl_dp.updates.batch_norm import with_sound_variances

from .node_answers import RehearsalFailed
from .optimizer_state import NotPlain, is_function, pack_state, state_fingerprint, unpack_state

logger = logging.getLogger("flwr.fl_dp")
_FLOWER_LOG = logging.getLogger("flwr")
_TRIAL_MOVE = 2.0**-10  # of each coordinate: noise moves all of them, too

_ROBUST = (
    "it chooses among the clients' updates and would see only one, their private mean; robustness "
    "has to act before the noise, where this choice has no bounded sensitivity"
)
_FLOWER_DP = (
    "it clips and adds noise itself, so noise would be added twice and accounted for once; "
    "DPFedAvg takes its place"
)
_TREES = "it collects boosted trees, which have no mean that could be clipped and noised"
# By name: some of these classes are private in Flower, and a release may drop any of them.
_REFUSED = {
    "FedMedian": _ROBUST,
    "FedTrimmedAvg": _ROBUST,
    "Krum": _ROBUST,
    "MultiKrum": _ROBUST,
    "Bulyan": _ROBUST,
    "DifferentialPrivacyFixedClippingBase": _FLOWER_DP,
    "DifferentialPrivacyAdaptiveBase": _FLOWER_DP,
    "FedXgbBagging": _TREES,
    "FedXgbCyclic": _TREES,
    "QFedAvg": (
        "it weights each client by its training loss, which is private and is never sent to the "
        "server optimizer"
    ),
}


class ServerOptimizer:
    """A Flower strategy that turns a private mean update into the next model.

    Attributes:
        last_round: The last round that was stepped, here or before `restore`; None before any.
    """

    def __init__(self, strategy: Strategy, front: Strategy | None = None) -> None:
        """Wrap a Flower strategy, which must be used for nothing else.

        Raises:
            TypeError: If this is no strategy of Flower's Message API, or can't work on a private
                mean: robust aggregators, Flower's own DP wrappers, tree ensembles, loss-weighted
                means, another private strategy. The text says why.
        """
        refuse_unfit(strategy)
        self.strategy = strategy
        self._front = front if front is not None else self
        self.last_round: int | None = None
        self._restored_round: int | None = None
        # What the strategy wrote into the train config, for strategies that decay a value there.
        self._config: dict[str, Any] = {}
        self._constructed = _fingerprints(strategy)
        self._kept_alive = dict(vars(strategy))  # a fingerprint may be an identity

    def instruct(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, roster: Sequence[int]
    ) -> RecordDict:
        """What the inner strategy would send a client.

        The strategy gets half precision as float32. As in Flower, what it writes into the config
        is there again in the next round, even in a fresh config. A resumed training goes on
        counting rounds.

        Raises:
            ValueError: If it would send nothing, no message of training, another model, or
                different things to different nodes, or the round was done before the state was
                saved.
        """
        if self._restored_round is not None and server_round <= self._restored_round:
            raise ValueError(
                f"round {server_round} was done before this state was saved: continue with round "
                f"{self._restored_round + 1}"
            )
        config.update(self._config)
        before = dict(config)
        model = _computable(arrays)
        grid = _StandInGrid(roster, self._least_nodes())
        messages = list(self._front.configure_train(server_round, model, config, grid))
        if not messages:
            raise ValueError(
                f"{self._name} trains nobody: give it fraction_train=1.0; who takes part is "
                "decided by the sampling rate of the plan"
            )
        content = self._content_of(messages, MessageType.TRAIN, model)
        for key, value in config.items():
            if key not in before or before[key] != value:
                self._config[key] = value
        if isinstance(self.strategy, FedAvgM):
            # It keeps its first model and then its own unrounded results, so a second training or
            # a model in half precision would be stepped from where no client was.
            self.strategy.current_arrays = model
        return content

    def _content_of(self, messages: Sequence[Message], kind: str, model: ArrayRecord) -> RecordDict:
        """The content that all of a round's messages have.

        Raises:
            ValueError: If they differ, or are of another kind or another model.
        """
        content = messages[0].content
        contents = [message.content for message in messages]
        if any(other is not content and other != content for other in contents):
            raise ValueError(
                f"{self._name} sends different things to different nodes; in a private round all "
                "get the same"
            )
        sent = messages[0].metadata.message_type
        if sent != kind:
            raise ValueError(
                f"{self._name} sends messages of type '{sent}', which no client is asked in a "
                f"private round: write '{kind}'"
            )
        if next(iter(content.array_records.values()), None) != model:
            raise ValueError(
                f"{self._name} sends another model than the last released one, which clients get: "
                "change the model in aggregate_train"
            )
        return content

    def instruct_evaluation(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, roster: Sequence[int]
    ) -> RecordDict | None:
        """What the inner strategy would send a client to evaluate; None: nobody is asked.

        As `instruct`; every client gets the same, and the strategy's fractions are not used.

        Raises:
            ValueError: As `instruct`.
        """
        model = _computable(arrays)
        grid = _StandInGrid(roster, self._least_nodes())
        messages = list(self._front.configure_evaluate(server_round, model, config, grid))
        return self._content_of(messages, MessageType.EVALUATE, model) if messages else None

    def step_evaluation(
        self, server_round: int, metrics: Mapping[str, float] | None
    ) -> MetricRecord | None:
        """Hand over one private evaluation, as if one client had replied; return the metrics.

        None stands for no reply: the noise hides what was measured.
        """
        replies: list[Message] = []
        if metrics is not None:
            reported = MetricRecord({**metrics, self.weight_key: 1})
            origin = Message(RecordDict(), dst_node_id=1, message_type=MessageType.EVALUATE)
            give_id(origin, _id_of(server_round))
            replies.append(Message(RecordDict({"metrics": reported}), reply_to=origin))
        return self._front.aggregate_evaluate(server_round, replies)

    def step(
        self,
        server_round: int,
        arrays: ArrayRecord,
        instruction: RecordDict,
        metrics: Mapping[str, float] = MappingProxyType({}),
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand over one private model and return the next one.

        `arrays` is the model plus the private mean update, best in float32 and unrounded;
        `instruction` is what `instruct` returned for this round, `metrics` the round's released
        ones.

        Returns:
            Arrays of the same names and shapes in the strategy's dtypes (FedAdam, for one, turns
            float32 into float64), or None to keep the model; and the released metrics with the
            strategy's, if any.

        Raises:
            ValueError: If the inner strategy returns arrays of another form.
        """
        key = next(iter(instruction.array_records))
        moved = ArrayRecord(dict(_computable(arrays)))
        reported = MetricRecord({**metrics, self.weight_key: 1})
        origin = Message(RecordDict(), dst_node_id=1, message_type=MessageType.TRAIN)
        # Flower fills the id of a message when it is sent; this one never is.
        give_id(origin, _id_of(server_round))
        reply = Message(RecordDict({key: moved, "metrics": reported}), reply_to=origin)
        updated, measured = self._front.aggregate_train(server_round, [reply])
        self.last_round = server_round
        if updated is not None:
            if _shapes(updated) != _shapes(arrays):
                raise ValueError(f"{self._name} returned arrays of other names or shapes")
            updated = with_sound_variances(updated)
        return updated, _joined(metrics, measured)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The inner strategy's messages of a round, which go nowhere.

        Raises:
            RuntimeError: If the grid could send them: nothing would be charged.
        """
        _require_stand_in(grid, "configure_train")
        with _quiet_flower():
            return list(self.strategy.configure_train(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of a round's one reply, and its metrics.

        Raises:
            RuntimeError: If these are other replies: they may be raw.
        """
        released = list(replies)
        _require_released(server_round, released, "aggregate_train", least=1)
        with _quiet_flower(), _without_metrics(self.strategy):
            updated, measured = self.strategy.aggregate_train(server_round, released)
        metrics = dict(released[0].content.metric_records["metrics"])
        metrics.pop(self.weight_key, None)
        return updated, _joined(metrics, measured)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The inner strategy's messages of an evaluation, which go nowhere.

        Raises:
            RuntimeError: If the grid could send them: nothing would be charged.
        """
        _require_stand_in(grid, "configure_evaluate")
        with _quiet_flower():
            return list(self.strategy.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """What the inner strategy makes of an evaluation's one reply.

        Raises:
            RuntimeError: If these are other replies: they may be raw.
        """
        released = list(replies)
        _require_released(server_round, released, "aggregate_evaluate", least=0)
        with _quiet_flower():
            return self.strategy.aggregate_evaluate(server_round, released)

    def rehearse(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: Mapping[str, Any],
        roster: Sequence[int],
        *,
        metrics: Sequence[str],
        evaluated: Sequence[str] = (),
        saved: bool,
    ) -> None:
        """Run a round on a throw-away copy, if one can be made, before any charge.

        `metrics` are those that the round releases, `evaluated` those of its evaluation, if any.

        Raises:
            RehearsalFailed: If the round would fail.
        """
        try:
            trial = deepcopy(self)
        except Exception as uncopied:  # whatever a foreign object raises
            logger.warning(
                "%s can't be tried before the first charge: it can't be copied (%s)",
                self._name,
                uncopied,
            )
            return
        layout = VectorLayout.of(arrays)
        mean = np.full(layout.size, _TRIAL_MOVE)
        moved = layout.unflatten(layout.flatten(arrays), mean)
        trial._constructed = _fingerprints(trial.strategy)  # an object's own may be its identity
        try:
            with _quiet_flower():
                asked = trial.instruct(server_round, arrays, ConfigRecord(dict(config)), roster)
                stepped, _ = trial.step(server_round, moved, asked, dict.fromkeys(metrics, 0.0))
                _require_step(layout, arrays, moved, stepped)
                if evaluated:
                    trial.instruct_evaluation(server_round, moved, ConfigRecord(), roster)
                    trial.step_evaluation(server_round, dict.fromkeys(evaluated, 0.0))
            if saved:
                trial.state()
        except Exception as failed:
            evaluation = f"; an evaluation's are {[*evaluated, 'num-examples']}"
            if not evaluated:
                evaluation = ""
            raise RehearsalFailed(
                f"{self._name} failed with {type(failed).__name__} ({failed}) on a trial reply, "
                "and nothing was charged. It gets one reply a round, whose arrays are the model "
                f"and whose metrics are {[*metrics, 'num-examples']}{evaluation}"
            ) from failed

    def state(self) -> dict[str, NDArray[Any]]:
        """The strategy's state after the rounds so far, to go on in another process.

        It holds attributes that changed since construction, or the strategy's own `state_dict()`
        if it has one (and `load_state_dict(state)`). Settings such as a learning rate are not
        saved: they come from the strategy that `restore` meets. A change inside an object that
        Python can't serialize (a lock, a connection) is missed.

        Returns:
            Copies, as named contiguous arrays for `safetensors.numpy.save_file` or `np.savez`.

        Raises:
            TypeError: If something changed that can't be kept as plain arrays.
        """
        saved = {"strategy": self._name, "round": self.last_round, "config": self._config}
        own = getattr(self.strategy, "state_dict", None)
        if own is not None:
            try:
                return pack_state(saved | {"state_dict": own()})
            except NotPlain as refused:
                raise TypeError(f"{self._name}.state_dict() can't be saved: {refused}") from None
        now = _fingerprints(self.strategy)
        changed = {
            name: vars(self.strategy)[name]
            for name in now
            if now[name] != self._constructed.get(name)
        }
        for name, value in changed.items():
            try:
                pack_state({name: value})
            except NotPlain as refused:
                raise TypeError(
                    f"{self._name}.{name} changed during training and can't be saved: {refused}. "
                    f"Give {self._name} state_dict() and load_state_dict(state) that speak in "
                    "numpy arrays, numbers and texts"
                ) from None
        return pack_state(saved | {"attributes": changed})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on where `state` was called.

        Raises:
            ValueError: If the state is another strategy's or damaged, or this optimizer has
                stepped.
        """
        if self.last_round is not None:
            raise ValueError("this server optimizer was used already: restore into a new one")
        saved = unpack_state(state)
        if not (
            isinstance(saved, dict)
            and {"strategy", "round", "config"} <= saved.keys()
            and ("state_dict" in saved or "attributes" in saved)
        ):
            raise ValueError("this is not the state of a server optimizer")
        if saved["strategy"] != self._name:
            raise ValueError(
                f"the state is that of {saved['strategy']}, the server optimizer is {self._name}: "
                f"make a {saved['strategy']} with the settings of the first run"
            )
        if "state_dict" in saved:
            load = getattr(self.strategy, "load_state_dict", None)
            if load is None:
                raise ValueError(f"{self._name} has state_dict() but no load_state_dict(state)")
            load(saved["state_dict"])
        else:
            vars(self.strategy).update(saved["attributes"])
        self.last_round = self._restored_round = saved["round"]
        self._config = saved["config"]

    @property
    def weight_key(self) -> str:
        """Name of a client's number of records in its replies."""
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    @property
    def _name(self) -> str:
        return type(self.strategy).__name__

    def _least_nodes(self) -> int:
        """Number of nodes that Flower's sampling waits for, forever if need be."""
        least = 1
        for kind in ("available", "train", "evaluate"):
            wanted = vars(self.strategy).get(f"min_{kind}_nodes")
            if isinstance(wanted, int):
                least = max(least, wanted)
        return least


def _require_step(
    layout: VectorLayout, model: ArrayRecord, moved: ArrayRecord, stepped: ArrayRecord | None
) -> None:
    """Check that a strategy makes a finite model of a moved one, and another than it had.

    Raises:
        ValueError: It does not.
    """
    if stepped is None:
        return  # the model stays for this round
    before, asked, after = (layout.in_float64().flatten(each) for each in (model, moved, stepped))
    if not np.isfinite(after).all():
        raise ValueError("its model is not finite: write a finite learning rate")
    if np.array_equal(after, before) and not np.array_equal(asked, before):
        raise ValueError("its model is the one before: write a learning rate above 0")


def _require_stand_in(grid: Grid, hook: str) -> None:
    if not isinstance(grid, _StandInGrid):
        raise RuntimeError(
            f"{hook} charges nobody and is not for a grid that sends: start() runs the rounds"
        )


def _require_released(
    server_round: int, replies: Sequence[Message], hook: str, *, least: int
) -> None:
    answered_ids = [reply.metadata.reply_to_message_id for reply in replies]
    if len(replies) < least or answered_ids not in ([], [_id_of(server_round)]):
        raise RuntimeError(
            f"round {server_round} was not reserved: {hook} takes the one reply that a round "
            "released, and start() runs the rounds"
        )


def _id_of(server_round: int) -> str:
    """Id of the message that a round's one reply answers."""
    return f"fl-dp-round-{server_round}"


def _joined(released: Mapping[str, Any], returned: MetricRecord | None) -> MetricRecord | None:
    """Released and returned metrics together; None if there are none."""
    metrics = {**released, **(returned or {})}
    return MetricRecord(metrics) if metrics else None


def _shapes(arrays: ArrayRecord) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}


def refuse_unfit(strategy: object) -> None:
    """Raise a TypeError for what can't be a server optimizer of private rounds."""
    if not isinstance(strategy, Strategy):
        kind = strategy if isinstance(strategy, type) else type(strategy)
        if any(base.__module__.startswith("flwr.server.strategy") for base in kind.__mro__):
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__} is a strategy of Flower's legacy API: "
                f"import {_successor(kind)} from flwr.serverapp.strategy and start it in a "
                "ServerApp's main; docs/migration.md shows every line that changes"
            )
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} can't be the server optimizer: pass an "
            "object of a strategy of flwr.serverapp.strategy, for example FedAvg()"
        )
    ours = __name__.rpartition(".")[0]
    for base in type(strategy).__mro__:
        if base.__module__.rpartition(".")[0] == ours:
            reason: str | None = "it has a private path of its own; pass the strategy inside it"
        elif base.__module__.partition(".")[0] == "flwr":
            reason = _REFUSED.get(base.__name__)
        else:
            reason = None
        if reason is not None:
            name = type(strategy).__name__
            if type(strategy).__module__.partition(".")[0] != base.__module__.partition(".")[0]:
                name += f", a {base.__name__},"
            raise TypeError(
                f"{name} can't be the server optimizer of private rounds: {reason}. FedAvg, "
                "FedAvgM, FedAdam, FedYogi, FedAdagrad and FedProx can"
            )


def _successor(legacy: type) -> str:
    """Message-API name of the nearest class that has one, else FedAvg."""
    names = [base.__name__ for base in legacy.__mro__]
    return next((name for name in names if name in message_api.__all__), "FedAvg")


def _fingerprints(strategy: Strategy) -> dict[str, str]:
    """A fingerprint of every attribute that may be state."""
    return {
        name: state_fingerprint(value)
        for name, value in vars(strategy).items()
        if not is_function(value)
    }


def _computable(arrays: ArrayRecord) -> ArrayRecord:
    """The arrays, with half precision as float32.

    NumPy can't compute with bfloat16, and in float16 the squares of small updates vanish: FedAdam
    would divide by `tau` alone.
    """
    return ArrayRecord({name: _single(array) for name, array in arrays.items()})


def _single(array: Array) -> Array:
    values = values_of(array)
    if array.dtype not in ("float16", "bfloat16") and values.dtype.name == array.dtype:
        return array
    return Array(np.asarray(values, np.promote_types(values.dtype, np.float32)))


class _StandInGrid(Grid):
    """A grid with the roster's nodes, which can't send them anything."""

    def __init__(self, roster: Sequence[int], least: int) -> None:
        """Show the roster, and invented nodes beside it up to `least`."""
        first = max(roster, default=0) + 1
        self._nodes = [*roster, *range(first, first + least - len(roster))]

    def get_node_ids(self) -> Iterable[int]:
        return self._nodes

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError("the inner strategy of DPFedAvg can't talk to clients by itself")

    run = property(_refuse)
    set_run = create_message = push_messages = pull_messages = send_and_receive = _refuse


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Mute the inner strategy's log: it counts stand-in nodes and synthetic replies."""
    before = _FLOWER_LOG.level
    _FLOWER_LOG.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _FLOWER_LOG.setLevel(before)


@contextmanager
def _without_metrics(strategy: Strategy) -> Iterator[None]:
    """Disable the strategy's averaging of metrics, which the synthetic reply lacks."""
    attributes = vars(strategy)
    own = attributes.get("train_metrics_aggr_fn")
    if own is None:
        yield
        return
    attributes["train_metrics_aggr_fn"] = lambda *_: MetricRecord()
    try:
        yield
    finally:
        attributes["train_metrics_aggr_fn"] = own
