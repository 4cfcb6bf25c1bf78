"""A node's records in PyTorch, whose clipped gradients a secure sum adds up.

`RecordGradients` computes and sums them, as in DP-SGD inside a client. A record that can't be read,
collated or trained on has gradient zero, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_dp.mechanisms import SecureRandom
from fl_dp.model_arrays import sent_names, set_arrays
from fl_dp.promise import OF_RECORDS

from .per_record.dp_sgd import DPSGD
from .per_record.fit_for_dp_sgd import (
    require_trainable_privately,
)
from .per_record.module_template import ModuleTemplate
from .per_record.record_source import RecordSource, Source
from .records import Config


@dataclass(frozen=True, kw_only=True)
class NodeRecords:
    """A node's records, and the model at which their gradients are taken: a `RecordsFn`.

    Attributes:
        model_fn: Builds the model, with the server's names and shapes, from the node's `Context`
            and the message's config; see `private_module`.
        loader_fn: Returns the data set, or a loader of all of it; see `RecordSource`.
        dp_sgd: Its loss, keys, mode, example and physical batch size are used. The server chooses
            step and denominator, so optimizer and expected batch size are not.
        unit: `record`, or `person` where `loader_fn` returns `Persons`, as in the server's plan.
    """

    model_fn: Callable[[Context, Config], nn.Module]
    loader_fn: Callable[[Context, Config], Source]
    dp_sgd: DPSGD = field(default_factory=DPSGD)
    unit: str = "record"

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A setting would have no effect, or the unit is unknown.
        """
        if self.unit not in OF_RECORDS:
            raise ValueError(f"unit must be record or person, got {self.unit!r:.50}")
        if self.dp_sgd.expected_batch_size is not None or not self.dp_sgd.secure_randomness:
            raise ValueError(
                "the plan says what a sum is divided by, and its coins are secret: leave "
                "expected_batch_size and secure_randomness out of dp_sgd"
            )

    @property
    def declared_gradients(self) -> str | None:
        """See `DPSGD.declared_gradients`."""
        return self.dp_sgd.declared_gradients

    def arrays_fn(self, context: Context, config: Config) -> nn.Module:
        """The module whose trained arrays are summed, made without any data; see `ArraysFn`.

        Raises:
            ValueError: The model can't be trained.
        """
        module = self._built(context, config)
        self.dp_sgd.gradients(
            ModuleTemplate(module), unit=self.unit, clipping_norm=1.0, rng=SecureRandom()
        )
        return module

    def __call__(self, context: Context, config: Config, model: ArrayRecord) -> _Gradients:
        """Return the records at a model.

        Raises:
            ValueError: It can't be trained, or is not the server's; or the loader would not be
                used whole.
        """
        module = self._built(context, config)
        names = sent_names(module, model)
        set_arrays(module, model.to_numpy_ndarrays(), names)
        return _Gradients(
            module,
            RecordSource(self.loader_fn(context, config), unit=self.unit),
            self.dp_sgd,
            unit=self.unit,
            message_names=dict(zip(names, model, strict=True)),
        )

    def _built(self, context: Context, config: Config) -> nn.Module:
        """Build the model, and check it."""
        module = self.model_fn(context, config)
        require_trainable_privately(module)
        return module


class _Gradients:
    """A `RecordsOfNode`."""

    def __init__(
        self,
        module: nn.Module,
        source: RecordSource,
        how: DPSGD,
        *,
        unit: str,
        message_names: dict[str, str],
    ) -> None:
        self._module, self._source, self._how, self.unit = module, source, how, unit
        self._message_names = message_names

    def __len__(self) -> int:
        return len(self._source)

    def clipped_sum(
        self, rows: Sequence[int], clipping_norm: float
    ) -> tuple[dict[str, NDArray[np.float64]], int]:
        """See `RecordsOfNode.clipped_sum`."""
        template = ModuleTemplate(self._module)
        gradients = self._how.gradients(
            template, unit=self.unit, clipping_norm=clipping_norm, rng=SecureRandom()
        )
        sums: dict[str, NDArray[np.float64]] = {}
        count = 0

        def take(totals: Sequence[Tensor]) -> None:
            nonlocal count
            for name, total in zip(template.parameters, totals, strict=True):
                sums[self._message_names[name]] = total.cpu().numpy().copy()
            count = gradients.contributing

        gradients.read(self._source)
        gradients.sum_each([list(rows)], take)
        return sums, count
