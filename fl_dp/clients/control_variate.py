"""What corrects the drift of a client whose labels are unlike the others', kept at the client.

    >>> variate = ControlVariate(context, unit=0, sent=arrays, server_round=7, pace=rate * steps)
    >>> for name, gradient in gradients.items():  # in each local step
    ...     gradient += variate.correction[name]
    >>> variate.keep(trained)

SCAFFOLD adds the federation's direction to each step and takes off the client's own. Here the
client reads the federation's off the models that it was sent: from that of its last round to that
of this one. So nothing more travels than without it.

Privacy, of whole clients: released models are public, and what is kept never leaves but in the next
update, which is clipped and noised as any other. Of records it holds none: what one of them left
here would steer the gradients of all others.

References:
    Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    option II; there the server sends the direction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray

logger = logging.getLogger("flwr.fl_dp.client")

_STATE = "fl-dp-control-variate"
_ROUND = "round"
_SEEN, _OWN = "seen ", "own "  # before the name of an array

Arrays = Mapping[str, NDArray[Any]]


class ControlVariate:
    """One unit's, in one round.

    Attributes:
        correction: What each local step adds to the gradient, by the array's name; zero in the
            unit's first round.
    """

    def __init__(
        self,
        context: Context,
        *,
        unit: int,
        sent: Arrays,
        server_round: int,
        pace: float,
        gain: float = 1.0,
    ) -> None:
        """Look up what the unit kept.

        Args:
            context: The node's, whose state lasts as long as the Flower run.
            unit: Index among the node's units.
            sent: The arrays that are trained, as they were sent.
            server_round: Its number, from 1.
            pace: Length of all local steps together: learning rate times their number.
            gain: How far the server moves by a mean update that stays the same.
        """
        self._state, self._key = context.state, f"{_STATE}-{unit}"
        self._sent, self._round, self._pace = sent, server_round, pace
        kept = self._kept()
        self._direction: Arrays = {name: np.zeros_like(value) for name, value in sent.items()}
        self._own = self._direction
        if kept is not None:
            moved = max(1, server_round - int(kept[_ROUND])) * pace * gain
            self._own = {name: kept[_OWN + name] for name in sent}
            self._direction = {
                name: (kept[_SEEN + name] - value) / moved for name, value in sent.items()
            }
        self.correction = {name: self._direction[name] - self._own[name] for name in sent}

    def keep(self, trained: Arrays) -> None:
        """Keep what the next round needs; nothing that is not finite, which would spoil it.

        Args:
            trained: The arrays after the last step, with more or not.
        """
        own = {
            name: (value - trained[name]) / self._pace - self.correction[name]
            for name, value in self._sent.items()
        }
        if not all(np.isfinite(each).all() for each in own.values()):
            logger.warning("the control variate is not finite: the one before is kept")
            return
        arrays = {_SEEN + name: value for name, value in self._sent.items()}
        arrays |= {_OWN + name: value for name, value in own.items()}
        arrays[_ROUND] = np.array(self._round)
        self._state[self._key] = ArrayRecord({k: Array(np.array(v)) for k, v in arrays.items()})

    def _kept(self) -> dict[str, NDArray[Any]] | None:
        found = self._state.array_records.get(self._key)
        if found is None:
            return None
        kept = {name: array.numpy() for name, array in found.items()}
        # Of another model, or another factor of LoRA: begin anew.
        wanted = {
            each + name: value for name, value in self._sent.items() for each in (_SEEN, _OWN)
        }
        fits = kept.keys() == {_ROUND, *wanted} and all(
            kept[name].shape == value.shape for name, value in wanted.items()
        )
        return kept if fits else None
