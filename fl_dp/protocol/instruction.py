"""A round's instruction to a client about its privacy: JSON text in a train message's config.

Plain clients never see one: with one unit per node and noise at the server, any Flower client
works. It travels only when a client has to do something for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord

from fl_dp.accounting import NeighboringRelation
from fl_dp.codec import decode_text
from fl_dp.mechanisms import ClientScheme, GaussianBundle, client_scheme
from fl_dp.option_errors import require_count, require_positive, require_probability
from fl_dp.promise import UNITS
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.updates import Compression, VectorLayout


@dataclass(frozen=True, kw_only=True)
class NoiseInstruction:
    """The noise that a client adds to its own update.

    Attributes:
        scheme: A name of `fl_dp.mechanisms.schemes.SCHEMES`.
        noise_multiplier: Scale of the noise over `clipping_norm`.
        clipping_norm: Bound on the update, in the scheme's norm.
        epsilon: The client's budget for the whole training. None: only the node's owner caps it.
        delta: That budget's delta.
        neighboring_relation: Which data of the client are neighbours.
        levels: Number of grid points of `exponential`, which costs no privacy. None: its default.
    """

    scheme: str
    noise_multiplier: float
    clipping_norm: float
    epsilon: float | None = None
    delta: float | None = None
    neighboring_relation: str = "zero-out"
    levels: int | None = None

    def __post_init__(self) -> None:
        """Validate the fields that are stored or compared; `mechanism` checks the rest.

        Raises:
            ValueError: A field is out of range.
        """
        _require_promise(self.epsilon, self.delta, self.neighboring_relation)

    def mechanism(self) -> ClientScheme:
        """The scheme that clips the update and adds the noise.

        Raises:
            ValueError: A field is out of range.
        """
        return client_scheme(
            self.scheme,
            noise_multiplier=self.noise_multiplier,
            clipping_norm=self.clipping_norm,
            levels=self.levels,
        )


@dataclass(frozen=True, kw_only=True)
class SumInstruction:
    """A secure sum's price to a client, besides its terms.

    `epsilon`, `delta` and `neighboring_relation` are as in `NoiseInstruction`.

    Attributes:
        rounds: Number of planned sums: rounds, and other releases.
        unit: `client`, `person` or `record`.
    """

    rounds: int
    epsilon: float | None = None
    delta: float | None = None
    neighboring_relation: str = "zero-out"
    unit: str = "client"

    def __post_init__(self) -> None:
        """Validate: a node stores a run's first, and compares the others with it.

        Raises:
            ValueError: A field is out of range.
        """
        require_count(rounds=self.rounds)
        _require_promise(self.epsilon, self.delta, self.neighboring_relation)
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {self.unit!r:.50}")


@dataclass(frozen=True, kw_only=True)
class RoundInstruction:
    """A client's work in one round, besides training.

    Attributes:
        units: Indices of the node's units that take part. None: the node is one unit, and answers
            with its model as any Flower client does.
        sampling_rate: Rate of the coins that the node itself flips for its many units; it never
            tells how many came up. Excludes `units`.
        max_units: Most units that a node hosts.
        of_records: Whether its units are its records, each one's update being its gradient.
        bundle: How units are clipped and summed on the node. It goes with `units` or
            `sampling_rate`, or names the metrics asked for.
        weight_cap: A unit has weight `min(records / weight_cap, 1)`. None: weight 1.
        utility: The unit's report for the selection (`loss`, `records`, or a name that the client
            knows). None: no report.
        client_noise: Noise that the client adds itself.
        compression: How the client encodes its update, after that noise. None: it sends its model.
        secure_sum: Price of the client's sum, if it is a secure one.
        trained: Names or patterns of the arrays that are trained; see `Plan`. None: all
            floating-point arrays.
    """

    server_round: int
    units: tuple[int, ...] | None = None
    sampling_rate: float | None = None
    max_units: int = 1
    of_records: bool = False
    bundle: GaussianBundle | None = None
    weight_cap: float | None = None
    utility: str | None = None
    client_noise: NoiseInstruction | None = None
    compression: Compression | None = None
    secure_sum: SumInstruction | None = None
    trained: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Validate the numbers.

        Raises:
            ValueError: One is out of range.
        """
        require_count(max_units=self.max_units)
        if self.sampling_rate is not None and not 0.0 <= self.sampling_rate <= 1.0:
            raise ValueError(f"sampling_rate must lie in [0, 1], got {self.sampling_rate}")
        if self.weight_cap is not None:
            require_positive(weight_cap=self.weight_cap)

    @property
    def says_nothing(self) -> bool:
        """Whether a client has nothing to do for it: any Flower client will do."""
        plain = RoundInstruction(server_round=self.server_round, trained=self.trained)
        return self == plain

    def layout_of(self, model: ArrayRecord) -> VectorLayout:
        """Positions of the trained arrays of a message's model.

        Raises:
            ValueError: As `VectorLayout.of`.
        """
        return VectorLayout.of(model, self.trained)

    @property
    def encoding(self) -> Compression:
        """How the client's update travels: encoded, or as its model."""
        return Compression() if self.compression is None else self.compression

    @property
    def asks_each_unit(self) -> bool:
        """Whether each unit tells a number of its own, which shows how many take part."""
        return self.utility is not None

    @property
    def asked_metrics(self) -> set[str]:
        """Names of what units report of their training."""
        metrics = () if self.bundle is None else self.bundle.metrics
        return {metric.name for metric in metrics} | {self.utility or ""} - {""}

    @property
    def sums_units(self) -> bool:
        """Whether the node answers with a sum of clipped units instead of a model."""
        return self.units is not None or self.sampling_rate is not None

    @classmethod
    @lru_cache(maxsize=1)  # a node with thousands of units reads the same text for each of them
    def from_json(cls, text: str) -> Self:
        """The instruction in a JSON text; see `decode_text`."""
        return decode_text(cls, text)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """The instruction in a message's config, or None."""
        text = config.get(INSTRUCTION_KEY)
        return None if text is None else cls.from_json(str(text))


def _require_promise(epsilon: float | None, delta: float | None, relation: str) -> None:
    """Refuse a promise that is out of range."""
    if epsilon is not None:
        require_positive(epsilon=epsilon)
    if delta is not None:
        require_probability(delta=delta)
    _ = NeighboringRelation(relation)


def applied_noise(instruction: RoundInstruction) -> ConfigRecord:
    """A reply's record of its noise, which the server compares."""
    noise = instruction.client_noise
    assert noise is not None  # nobody asks for less
    return ConfigRecord(
        {
            "round": instruction.server_round,
            "scheme": noise.scheme,
            "noise-multiplier": noise.noise_multiplier,
            "clipping-norm": noise.clipping_norm,
        }
    )
