"""Price of a whole training to one client, where the server adds the noise: told to its node.

A node whose owner trusts the server with noise and coins can't count rounds: whether it was drawn
is a secret that makes each round cheaper, and a round costs it although it was not drawn. So the
whole training is charged once, before the node first answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from fl_dp.accounting import NeighboringRelation
from fl_dp.documents import document, parsed_object
from fl_dp.option_errors import require_count, require_positive


@dataclass(frozen=True, kw_only=True)
class TrainingPrice:
    """Releases of a training as they are charged to a client of one group.

    Attributes:
        training: Name of the training, the same after a restart: it is charged once.
        epsilon: What the training promises to that client, at most.
        event: Of one round, as `event_to_dict` writes it.
        rounds: That are planned.
        neighboring_relation: Which data of the client are neighbours.
    """

    training: str
    epsilon: float
    event: Mapping[str, Any]
    rounds: int
    neighboring_relation: str

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        require_positive(epsilon=self.epsilon)
        require_count(rounds=self.rounds)
        _ = NeighboringRelation(self.neighboring_relation)

    def to_json(self) -> str:
        """Return the price as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the price that `to_json` wrote.

        Raises:
            ValueError: If it is not one.
        """
        with document("price of a training"):
            return cls(**parsed_object(text, "price of a training"))


def offers_to_json(offers: Sequence[TrainingPrice]) -> str:
    """Return prices among which an owner chooses as JSON text."""
    return json.dumps([each.to_json() for each in offers])


def offers_from_json(text: str) -> tuple[TrainingPrice, ...]:
    """Return the prices that `offers_to_json` wrote.

    Raises:
        ValueError: If they are none.
    """
    with document("list of prices"):
        return tuple(TrainingPrice.from_json(str(each)) for each in json.loads(text))
