"""A step on made-up records, which tells whether a model's clients can be trained in one go."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fl_dp.model_modes import set_training_mode

from .cohort_size import FEWEST_ROWS, units_at_once
from .image_layers import ImageLayers
from .local_training import LocalTraining
from .loss_of_rows import CohortForm, LossOfRows
from .model_entries import Entries

_COPIES = 4  # of a unit's parameters: its row, the gradient, and what layers copy


class OneByOne(Exception):
    """Why clients of a model are trained one by one."""


@dataclass(frozen=True)
class Tried:
    """A step on made-up records.

    Attributes:
        coins: What one client's dropout needs.
        unit_bytes: What one client's step stores.
    """

    coins: int
    unit_bytes: int


def tried_step(
    model: nn.Module,
    form: CohortForm,
    training: LocalTraining,
    images: ImageLayers,
    *,
    any_size: bool,
) -> Tried:
    """Take a step of one client with made-up records.

    Raises:
        OneByOne: The model's clients can't be trained together, or not as fast.
        Exception: Any exception of a model that can't be.
    """
    model = copy.deepcopy(model)
    set_training_mode(model)
    entries = Entries(model, None)
    kinds = {parameter.dtype for parameter in entries.trained.values()}
    if not kinds <= {torch.float32, torch.float64}:
        raise OneByOne(f"parameters are {', '.join(map(str, kinds))}: let them be float32")
    if not kinds:
        raise OneByOne("nothing is trained")
    if len({tensor.device for tensor in model.state_dict().values()}) > 1:
        raise OneByOne("the model is on several devices: move it to one")
    buffers = [(name, buffer, buffer._version) for name, buffer in model.named_buffers()]
    elsewhere = _other_generators()
    stored: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    made_up = [
        torch.ones((1, form.width, *shape), dtype=dtype, device=entries.device)
        for dtype, shape in (form.features, form.labels)
    ]
    weights = torch.full(made_up[0].shape[:2], 1.0 / form.width, device=entries.device)
    loss_of_rows = LossOfRows(model, training.loss, form, images)
    leaves = entries.leaves(1)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = loss_of_rows(leaves, made_up[0], made_up[1], weights)
    size = sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
    unit_bytes = sum(stored.values()) + _COPIES * size
    on_cpu = entries.device.type == "cpu"
    if on_cpu and not any_size and units_at_once(unit_bytes) < FEWEST_ROWS:
        raise OneByOne(
            f"a step stores {unit_bytes >> 20} MiB, which is as fast on a CPU: a smaller "
            "batch_size or model would go together, or a GPU"
        )
    torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, before, version), after in zip(buffers, model.buffers(), strict=True):
        if before is not after or version != after._version:
            raise OneByOne(f"{name} changes in training: let it be, or freeze its part in eval()")
    if elsewhere != _other_generators():
        raise OneByOne("the model draws from NumPy or random: let it draw by nn.Dropout alone")
    return Tried(coins=loss_of_rows.coins_asked, unit_bytes=unit_bytes)


def _other_generators() -> tuple[object, ...]:
    """States of the process's generators that `torch.vmap` does not watch."""
    _, words, at, *gauss = np.random.get_state()
    return random.getstate(), np.asarray(words).tobytes(), at, *gauss
