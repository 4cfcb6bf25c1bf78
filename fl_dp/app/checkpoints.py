"""A training's checkpoint on disk: one safetensors file, replaced as a whole.

Arrays are Flower's bytes, so each dtype comes back unchanged. Nothing in it is secret: released
models, server optimizer state, released clipping norms, the ledger's last entry. Noise and coins
are not saved: a new process begins a new stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fl_dp.codec import decode, encode
from fl_dp.documents import document, parsed_object
from fl_dp.files import written_whole
from fl_dp.ledger import LedgerAnchor
from fl_dp.strategies import Checkpoint

_VERSION = 2
_MODEL, _OPTIMIZER = "model/", "optimizer/"


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint only its owner can read; a reader finds the old or the new one."""
    tensors: dict[str, NDArray[Any]] = {}
    forms = {}
    for name, array in checkpoint.model.items():
        tensors[_MODEL + name] = np.frombuffer(array.data, dtype=np.uint8)
        forms[name] = {"dtype": array.dtype, "shape": list(array.shape), "stype": array.stype}
    for name, values in checkpoint.optimizer.items():
        tensors[_OPTIMIZER + name] = np.ascontiguousarray(values)
    header = {
        "version": _VERSION,
        "server_round": checkpoint.server_round,
        "model": forms,
        "shapes": {name: list(values.shape) for name, values in checkpoint.optimizer.items()},
        "clipping_norms": checkpoint.clipping_norms,
        "ledger": encode(checkpoint.ledger),
    }
    stored = save(tensors, metadata={"fl-dp": json.dumps(header)})
    with written_whole(path) as unfinished:
        unfinished.write_bytes(stored)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint of this version.
    """
    with _opened(path) as (stored, header):
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    model = {
        name: Array(
            dtype=form["dtype"],
            shape=tuple(form["shape"]),
            stype=form["stype"],
            data=tensors[_MODEL + name].tobytes(),
        )
        for name, form in header["model"].items()
    }
    norms = header["clipping_norms"]
    if norms is not None:
        norms = tuple(norms)
    return Checkpoint(
        server_round=header["server_round"],
        model=ArrayRecord(model),
        optimizer={
            name: tensors[_OPTIMIZER + name].reshape(shape)
            for name, shape in header["shapes"].items()
        },
        clipping_norms=norms,
        ledger=_anchor_of(header),
    )


def checkpoint_anchor(path: Path) -> LedgerAnchor | None:
    """The ledger's last entry at a checkpoint; None for a training without a ledger.

    Raises as `load_checkpoint`.
    """
    with _opened(path) as (_, header):
        return _anchor_of(header)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        with safe_open(path, framework="numpy") as stored:
            header = parsed_object((stored.metadata() or {}).get("fl-dp", "{}"), "checkpoint")
            if header.get("version") != _VERSION:
                raise ValueError(
                    f"{path} is of another version of fl-dp: continue with the one that wrote "
                    "it, or start a new run"
                )
            with document("checkpoint"):
                yield stored, header
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no checkpoint ({error}): put back the one that belongs to the run"
        ) from error


def _anchor_of(header: dict[str, Any]) -> LedgerAnchor | None:
    anchor: LedgerAnchor | None = decode(LedgerAnchor | None, header["ledger"], "anchor")
    return anchor
