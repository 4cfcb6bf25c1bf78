"""Introduction of a node before anything is charged: its name, and the form of its answers.

It answers the identity query, and touches no data. The server compares it with the model and
refuses to start if it does not fit. Any app can answer such a query; what an app leaves out is not
compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord

from fl_dp.accounting.budget import Limit
from fl_dp.documents import document
from fl_dp.promise import Enforcement, enforcement_named
from fl_dp.protocol.message_keys import WIRE, WIRE_KEY

_NAME_KEY, _ABOUT_KEY = "name", "fl-dp-about"
_LONGEST_TEXT, _LONGEST_NAME = 4_000_000, 200

Form = tuple[tuple[int, ...], str]
"""Shape and dtype of an array."""


class Ability(StrEnum):
    """An ability that a training or a question may need of a client's app, besides training."""

    EVALUATION = "evaluation"
    """It contributes its measurements of a model to a statistic."""
    NOISE = "noise"
    """It adds a round's noise itself."""
    PERSONS = "persons"
    """It adds up gradients of its persons, each the mean of a person's records."""
    RECORDS = "records"
    """It adds up gradients of its records."""
    STATISTICS = "statistics"
    """It contributes values of its own to a statistic."""
    SUMS = "sums"
    """It answers with a sum over those of its units that take part, instead of a model."""
    UNITS = "units"
    """It hosts several units."""
    UTILITY = "utility"
    """It reports a utility to the selection."""
    WEIGHTS = "weights"
    """It applies a weight to its update."""


LACKING = {
    Ability.STATISTICS: (
        "nodes contribute values of their own to this statistic, and its app has none: write "
        "numpy_client_app(client_fn, statistics_fn=values_of), where values_of(context, unit, "
        "config, name) returns one unit's values"
    ),
    Ability.EVALUATION: (
        "nodes contribute bounded measurements of a model, and its app makes none: write "
        "numpy_client_app(client_fn). A plain ClientApp's @app.evaluate() is measured by an "
        "Evaluation, where a CentralPlan lets the server bound what it replies"
    ),
    Ability.NOISE: (
        "each client adds the noise of this training itself, and its app adds none: write "
        "numpy_client_app(client_fn), or noised_client_app() in place of ClientApp()"
    ),
    Ability.PERSONS: (
        "the units of the training are persons, and its app adds up none: give "
        "numpy_client_app(records=NodeRecords(..., unit='person')), or plan unit='record'"
    ),
    Ability.RECORDS: (
        "the units of the training are records, and its app adds up none: give "
        "numpy_client_app(records=NodeRecords(...)), or plan its unit"
    ),
    Ability.UNITS: (
        "a node hosts several units in this training, and its app hosts one: give "
        "numpy_client_app(client_fn, units=NodeUnits(...)), or plan units_per_node=1"
    ),
    Ability.SUMS: (
        "nodes flip the coins of their units and answer with sums, and its app does not: write "
        "numpy_client_app(client_fn), or plan coins_at_nodes=False"
    ),
    Ability.WEIGHTS: (
        "clients apply the weights of weight_cap themselves, and its app applies none: write "
        "numpy_client_app(client_fn), or leave weight_cap out"
    ),
    Ability.UTILITY: (
        "the selection asks clients for a utility, and its app tells none: write "
        "numpy_client_app(client_fn), or another selection"
    ),
}
"""What is said of an app without an ability that is needed, in the order in which it is said."""


def forms_of(arrays: ArrayRecord) -> dict[str, Form]:
    """Shape and dtype of each array by name."""
    return {name: (tuple(array.shape), array.dtype) for name, array in arrays.items()}


def forms_to_json(forms: Mapping[str, Form]) -> str:
    """Array forms as JSON text, in their order."""
    return json.dumps(dict(forms))


def forms_from_json(text: str) -> dict[str, Form]:
    """The array forms that `forms_to_json` wrote.

    Raises:
        ValueError: It is anything else.
    """
    with document("list of array forms"):
        return _forms(json.loads(text))


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """A node's answer to the identity query. It depends on none of the node's records.

    Attributes:
        name: Stable name in a roster; empty: it has none.
        app: Name of the app that answers.
        versions: Versions of the packages in use, by name.
        mods: Names of the Flower mods around its training.
        arrays: Shape and dtype of the arrays it will answer with, by name. None: unknown.
        trained: Names of those that it trains. None: unknown.
        failed: Kind of the error, if finding that out failed.
        refuses: Whether its owner does not allow this training.
        exhausted: The limit by which its ledger has no room for another round. None: there is
            room, or its owner does not let it tell.
        falls_short: Whether its ledger has room for a round and not for the whole training. False
            also if its owner does not let it tell.
        answer_after: Seconds from a training message to the answer of its gate. None: no fixed
            time.
        enforcement: Its promise's enforcement, as it states itself.
        wire: Version of its fl-dp's messages; 0: before versions existed. None: another app.
    """

    name: str = ""
    app: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    mods: tuple[str, ...] = ()
    arrays: Mapping[str, Form] | None = None
    trained: frozenset[str] | None = None
    failed: str = ""
    refuses: bool = False
    exhausted: Limit | None = None
    falls_short: bool = False
    abilities: frozenset[Ability] = frozenset()
    answer_after: float | None = None
    enforcement: Enforcement = Enforcement.APP
    wire: int | None = WIRE

    def to_config(self) -> ConfigRecord:
        """The answer as the one ConfigRecord of a reply."""
        trained = None if self.trained is None else sorted(self.trained)
        about = asdict(self) | {"abilities": sorted(self.abilities), "trained": trained}
        # Separate keys, so that they can be read even if the text can't.
        name, wire = about.pop("name"), about.pop("wire")
        config = ConfigRecord({_NAME_KEY: name})
        if wire is not None:
            config[WIRE_KEY] = wire
        config[_ABOUT_KEY] = json.dumps(about)
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read an untrusted node's answer; unreadable parts are left out."""
        name, wire = _text(str(config.get(_NAME_KEY, ""))), _wire(config)
        text = config.get(_ABOUT_KEY)
        if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
            return cls(name=name, wire=wire)
        try:
            about = json.loads(text)
            arrays, trained = about.get("arrays"), about.get("trained")
            return cls(
                name=name,
                app=_text(about.get("app")),
                versions={_text(name): _text(text) for name, text in about["versions"].items()},
                mods=tuple(map(_text, about["mods"])),
                arrays=None if arrays is None else _forms(arrays),
                trained=None if trained is None else frozenset(map(str, trained)),
                failed=_text(about.get("failed")),
                refuses=about.get("refuses") is True,
                falls_short=about.get("falls_short") is True,
                exhausted=_limit(about.get("exhausted")),
                abilities=frozenset(map(Ability, about["abilities"])),
                answer_after=_seconds(about.get("answer_after")),
                enforcement=enforcement_named(about.get("enforcement")),
                wire=wire,
            )
        except Exception:  # whatever a hostile text makes Python raise
            return cls(name=name, wire=wire)


def _forms(fields: Any) -> dict[str, Form]:
    if not isinstance(fields, dict):
        raise ValueError("array forms are a JSON object")
    return {
        str(name): (tuple(int(length) for length in shape), str(dtype))
        for name, (shape, dtype) in fields.items()
    }


def _wire(config: Mapping[str, Any]) -> int | None:
    """The version in an answer; without one it is an old node's, or another app's."""
    version = config.get(WIRE_KEY)
    if type(version) is int:
        return version
    return 0 if _ABOUT_KEY in config else None


def _limit(value: object) -> Limit | None:
    for limit in Limit:
        if limit == value:
            return limit
    return None


def _seconds(value: object) -> float | None:
    return value if isinstance(value, float) and value > 0.0 else None


def _text(value: object) -> str:
    """A short text in one line, which may be logged; all others become empty."""
    if isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable():
        return str(value)
    return ""
