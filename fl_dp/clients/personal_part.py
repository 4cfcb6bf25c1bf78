"""Parameters of a unit that never leave its node, stored there from round to round.

    >>> part = SharedPart.of(get_arrays(MyModel()), ["body.*"])
    >>> def client_fn(context: Context) -> NumPyClient:
    ...     client = MyNumPyClient(context)  # trains the whole model
    ...     return PersonalClient(client, context, part=part, first=get_arrays(MyModel()))
    >>> app = numpy_client_app(client_fn)

The server starts with `part.of_model(...)`: it never has the rest. Flower's `Context.state` holds
one personal part per unit, for one run. A node that lost it starts from the first one.

Privacy, of whole clients: the shared update leaves, clipped after the filter. So the promise is
that of the shared parameters, whatever the personal part has become. Of records: it holds only if
DP-SGD trains the personal part too (`OpacusClient` around the whole model). Traces of records left
in it without noise would steer all other records' gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays, Scalar
from numpy.typing import NDArray

from fl_dp.updates import SharedPart
from fl_dp.updates.shared_part import values_in_order

from .owner.node_config import NodeConfig

logger = logging.getLogger("flwr.fl_dp.client")

_STATE = "fl-dp-personal"


class PersonalPart:
    """One unit's model: a message's shared parameters, and the unit's own."""

    def __init__(
        self,
        context: Context,
        *,
        part: SharedPart,
        first: Mapping[str, NDArray[Any]],
        unit: int = 0,
    ) -> None:
        """Read the unit's stored part.

        Args:
            context: Has the owner's configuration and the unit's state.
            part: The part that travels.
            first: The first model, of all names: the same at every node.
            unit: Index among the node's units; each has its own part.

        Raises:
            ValueError: A name is missing.
            PermissionError: The owner withholds a shared parameter.
        """
        missing = [name for name in (*part.shared, *part.personal) if name not in first]
        if missing:
            raise ValueError(f"the first model has no '{missing[0]}': {', '.join(first)}")
        withheld = NodeConfig.of(context.node_config).withheld(part.shared)
        if withheld is not None:
            raise PermissionError(withheld)
        self._part, self._first = part, first
        self._state = context.state
        self._key = f"{_STATE}-{unit}"

    def whole(self, shared: Sequence[NDArray[Any]]) -> NDArrays:
        """Return the unit's model, in the first one's order.

        Raises:
            ValueError: There is not one array per shared parameter.
        """
        if len(shared) != len(self._part.shared):
            raise ValueError(
                f"got {len(shared)} arrays for {len(self._part.shared)} shared parameters: "
                f"{', '.join(self._part.shared)}"
            )
        sent = dict(zip(self._part.shared, shared, strict=True))
        return values_in_order(self._first, {**self._first, **self._stored(), **sent})

    def keep(self, trained: Sequence[NDArray[Any]]) -> NDArrays:
        """Store a trained model's personal part, and return the shared one.

        A part that is not finite is not stored: it would spoil every later round.

        Raises:
            ValueError: There is not one array per array of the model.
        """
        values = dict(zip(self._first, trained, strict=True))
        own = {name: np.asarray(values[name]) for name in self._part.personal}
        if all(np.isfinite(array).all() for array in own.values()):
            record = {name: Array(array) for name, array in own.items()}
            self._state[self._key] = ArrayRecord(record)
        else:
            logger.warning("the personal part is not finite: the one before is kept")
        return values_in_order(self._part.shared, values)

    def _stored(self) -> dict[str, NDArray[Any]]:
        """The stored part; empty if there is none, or it does not fit the model."""
        record = self._state.array_records.get(self._key)
        if record is None:
            return {}
        arrays = {name: array.numpy() for name, array in record.items()}
        if arrays.keys() != set(self._part.personal):
            return {}
        if any(array.shape != self._first[name].shape for name, array in arrays.items()):
            return {}
        return arrays


class PersonalClient(NumPyClient):
    """A client of the whole model; the server sees the shared parameters alone."""

    def __init__(
        self,
        client: NumPyClient,
        context: Context,
        *,
        part: SharedPart,
        first: Mapping[str, NDArray[Any]],
        unit: int = 0,
    ) -> None:
        """Wrap a client that trains and evaluates the whole model, in the order of `first`.

        The other arguments are those of `PersonalPart`.

        Raises:
            ValueError: As `PersonalPart`.
            PermissionError: As `PersonalPart`.
        """
        self.context = context
        self._client, self._part = client, part
        self._own = PersonalPart(context, part=part, first=first, unit=unit)

    def require_sent(self, names: Iterable[str], config: Mapping[str, Any]) -> None:
        """Check the names of a message's arrays; see `SharedPart.require_sent`."""
        self._part.require_sent(names)

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train the unit's model, store its personal part and return the shared one."""
        trained, records, metrics = self._client.fit(self._own.whole(parameters), config)
        return self._own.keep(trained), records, metrics

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Measure the shared parameters together with the unit's own."""
        return self._client.evaluate(self._own.whole(parameters), config)
