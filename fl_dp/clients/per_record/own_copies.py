"""Copies of a module that share nothing with it in which records or clients could meet.

`copy.deepcopy` copies what Python's own objects hold. An object with its own `__deepcopy__` may
share state with its copy, so both are walked through and compared.

Shared all the same, as `copy.deepcopy` takes them for values: functions with their closures and
defaults, classes with their attributes, and loggers. What they store is not covered.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import fractions
import gc
import logging
import pathlib
import re
import types
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Copied = TypeVar("Copied", bound=nn.Module)
State: TypeAlias = tuple[Hashable, str, Any]
"""What may be written into: its key (see `key_of`), its path in the module, the object."""

_PLAIN = {
    type(None),
    bool,
    int,
    float,
    complex,
    bytes,
    str,
    range,
    slice,
    types.EllipsisType,
    types.NotImplementedType,
}
"""Values if they are of exactly this type, as a subclass may have attributes."""

_VALUES = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    weakref.ReferenceType,
    types.CodeType,
    types.GenericAlias,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    property,
    enum.Enum,
    re.Pattern,
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    pathlib.PurePath,
    uuid.UUID,
    logging.Logger,
    np.dtype,
    np.generic,
    np.ufunc,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch._ops.OperatorBase,
    torch._ops.OpOverloadPacket,
)
"""Types whose objects hold nothing that a pass may change, or are code."""

_HOLDERS = (tuple, frozenset, types.MethodType, types.MappingProxyType)
"""What is shared without harm if all that it holds is."""

_OF_TORCH = ("_modules", "_parameters", "_buffers")


def own_copy_of(module: Copied) -> Copied:
    """Copy a module for a record or a unit, which may write into it whatever it likes.

    Raises:
        ValueError: A part can't be copied, or is shared or lost by the copy; the text names it.
    """
    return own_copy_with_states(module, states_of(module))[0]


def own_copy_with_states(module: Copied, states: Sequence[State]) -> tuple[Copied, Sequence[State]]:
    """Return the same copy of a module with its `states_of`, and the copy's. Raises the same."""
    _require_no_gradient_hooks(module)
    try:
        copied = copy.deepcopy(module, _computed_tensors(states) | copies_of(empty_of(states)))
    except Exception as error:
        raise ValueError(
            f"copy.deepcopy can't copy the {type(module).__name__} ({error}), and each record or "
            "client gets a copy: let forward make what can't be copied"
        ) from error
    return copied, require_own(copied, states)


def _require_no_gradient_hooks(module: nn.Module) -> None:
    """Check that no parameter has a hook, which PyTorch's copies of it do not have.

    Raises:
        ValueError: One has; the text names it.
    """
    for name, value in module.named_parameters():
        if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"'{name}' has a hook of its gradient, which copies lose, and noise moves what a "
                "hook masks: let forward compute it, or split off a part with requires_grad_(False)"
            )


def require_own(copied: nn.Module, states: Sequence[State]) -> Sequence[State]:
    """Return a copy's states, none of which its module shares.

    Raises:
        ValueError: It does; the text names the part.
    """
    of_module = {key for key, _, _ in states}
    of_copy = states_of(copied)
    for key, path, part in of_copy:
        if key in of_module:
            raise ValueError(
                f"copy.deepcopy does not copy '{path}' ({type(part).__name__}), in which records "
                "could meet: leave its __deepcopy__ out, or make it where forward uses it"
            )
    return of_copy


def states_of(module: nn.Module) -> list[State]:
    """All that a module holds and a pass may write into, from the outside to the inside."""
    states: list[State] = []
    seen: dict[int, Any] = {id(module): module}  # holds each object, as an id may be used again
    waiting: deque[tuple[str, Any]] = deque([("", module)])
    while waiting:
        path, part = waiting.popleft()
        if _is_value(type(part)):  # type: ignore[arg-type]  # a type is hashable
            # Recurrent layers of PyTorch refer so to the weights that they were copied from.
            of_weights = path.endswith("._flat_weight_refs")
            parts: Iterable[tuple[str, Any]] = [] if of_weights else [("", _target(part))]
        else:
            parts = _held(part)
            if not isinstance(part, _HOLDERS):
                states.append((key_of(part), path.removeprefix("."), part))
        for step, held in parts:
            if type(held) not in _PLAIN and id(held) not in seen:
                seen[id(held)] = held
                waiting.append((path + step, held))
    return states


@lru_cache(maxsize=4096)
def _is_value(kind: type) -> bool:
    return kind in _PLAIN or issubclass(kind, _VALUES)


def _target(part: Any) -> Any:
    """The object to which a weak reference or a method of a built-in type leads; None: none."""
    if isinstance(part, weakref.ReferenceType):
        return part()
    if isinstance(part, types.BuiltinFunctionType):
        # Functions of PyTorch's own are bound to a record of pybind11's.
        of_torch = type(part.__self__).__module__ == "pybind11_builtins"
        return None if of_torch else part.__self__
    return None


def key_of(part: Any) -> Hashable:
    """Equal for two objects if writing into one shows in the other."""
    address = 0
    if isinstance(part, Tensor) and part.layout == torch.strided and part.device.type != "meta":
        address = part.untyped_storage().data_ptr()
    elif isinstance(part, np.ndarray) and part.nbytes:
        address = part.__array_interface__["data"][0]
    return ("memory", address) if address else id(part)


def _held(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, each with the step of the path that leads there."""
    attributes = getattr(part, "__dict__", None)
    if isinstance(part, types.MethodType):
        yield from _held(attributes)  # of its function, which copies share
    elif isinstance(attributes, dict):
        yield "", attributes
    if isinstance(part, dict):
        for name, held in part.items():
            yield "" if name in _OF_TORCH else f".{name}", held
    if isinstance(part, np.ndarray):
        yield "", part.base
        if part.dtype.hasobject:
            yield "", part.tolist()
    if isinstance(part, Tensor) and part.is_leaf:
        yield ".grad", part.grad
    for held in gc.get_referents(part):
        yield "", held


def empty_of(states: Sequence[State]) -> list[Any]:
    """The empty dictionaries: of each module a dozen for hooks."""
    parts = [part for _, _, part in states]
    return [part for part in parts if type(part) is OrderedDict and not (part or vars(part))]


def copies_of(empty: Iterable[Any]) -> dict[int, Any]:
    """New ones by id, as `copy.deepcopy` takes them, which would take each apart."""
    return {id(part): OrderedDict() for part in empty}


def _computed_tensors(states: Sequence[State]) -> dict[int, Any]:
    """Detached copies of computed tensors by id, as `copy.deepcopy` takes them.

    Weight normalisation stores computed tensors, which PyTorch copies only when detached.
    """
    copies = {}
    for _, _, part in states:
        if isinstance(part, Tensor) and not part.is_leaf:
            copies[id(part)] = part.detach().clone()
    return copies
