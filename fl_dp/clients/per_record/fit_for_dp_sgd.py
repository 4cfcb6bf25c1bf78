"""Makes a torch module fit for DP-SGD.

BatchNorm mixes a batch's records: a record's gradient is not its own, and clipping does not bound
it. Its running statistics are released without noise. Opacus replaces it by GroupNorm. Do it
where the model is built, on the server and every client: the arrays need the same names.

    >>> model, changes = private_module(MyModel())
    >>> changes
    ('bn1: BatchNorm2d(16, ...) became GroupNorm(16, 16, ...)',)
"""

from __future__ import annotations

import copy
import pickle
import sys

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fl_dp.model_modes import parts_in_training


def private_module(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a copy that DP-SGD can train, and the list of changes.

    Opacus' replacements are made: GroupNorm for BatchNorm (of one group for BatchNorm1d, as groups
    of one channel leave nothing of a vector), InstanceNorm without statistics, LSTM, GRU, RNN and
    MultiheadAttention by layers of the same weights. Activations no longer work in place.

    Raises:
        ValueError: Parts remain that DP-SGD can't train, each named, or Opacus can't copy it.
    """
    from opacus.validators import ModuleValidator

    before = dict(model.named_modules())
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    open_model = copy.deepcopy(model)
    for parameter in open_model.parameters():
        # Opacus replaces trainable layers alone, and frozen ones mix records, too.
        parameter.requires_grad_(True)
    _let_pickle_find_classes(open_model)
    try:
        fixed = ModuleValidator.fix(open_model)
    except (pickle.PicklingError, AttributeError) as error:
        raise ValueError(
            f"Opacus can't copy this model ({error}): write its classes at the top of a module, "
            "and import them from there"
        ) from error
    for name, layer in before.items():
        if isinstance(layer, nn.BatchNorm1d):
            fixed = _replaced(fixed, name, _one_group(fixed.get_submodule(name)))
    for name, parameter in fixed.named_parameters():
        parameter.requires_grad_(name not in frozen)
    wrong = [str(error) for error in ModuleValidator.validate(fixed, strict=False)]
    if wrong:
        raise ValueError(f"Opacus knows no replacement for parts of this model: {'; '.join(wrong)}")
    require_trainable_privately(fixed)
    changes = []
    for name, module in fixed.named_modules():
        if getattr(module, "inplace", False):
            module.inplace = False
            changes.append(f"{name}: inplace=True became inplace=False")
        if name in before and type(module) is not type(before[name]):
            changes.append(f"{name}: {_described(before[name])} became {_described(module)}")
    return fixed, tuple(changes)


def _let_pickle_find_classes(model: nn.Module) -> None:
    """Put the started script's classes where pickle, by which Opacus copies, looks for them.

    Ray hands them to its workers as they are, and there another script is `__main__`.
    """
    main = sys.modules["__main__"]
    for kind in {type(module) for module in model.modules()}:
        if kind.__module__ == "__main__" and not hasattr(main, kind.__qualname__):
            setattr(main, kind.__qualname__, kind)


def require_trainable_privately(model: nn.Module) -> None:
    """Check that something is trained, and that no layer has statistics of batches.

    One that stays in `eval()`, as a frozen part does, is a constant.

    Raises:
        ValueError: It does not hold; the text names the parts and the way out.
    """
    wrong = []
    trained = set(parts_in_training(model))
    for name, module in model.named_modules():
        if module not in trained:
            continue
        if isinstance(module, _BatchNorm) or (
            isinstance(module, _InstanceNorm) and module.track_running_stats
        ):
            kind = type(module).__name__
            wrong.append(f"{name} ({kind}) has statistics of a batch, which nothing would train")
    if wrong:
        raise ValueError(
            f"DP-SGD can't train this model: {'; '.join(wrong)}. Write "
            "model, changes = fl_dp.clients.private_module(model) where the model is built, on "
            "the server too"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("every parameter of the model is frozen: there is nothing to train")


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, by name, each once."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _one_group(norm: nn.Module) -> nn.Module:
    if not isinstance(norm, nn.GroupNorm):
        return norm
    whole = nn.GroupNorm(1, norm.num_channels, eps=norm.eps, affine=norm.affine)
    whole.load_state_dict(norm.state_dict())
    if norm.affine:
        whole = whole.to(next(norm.parameters()).device)
    return whole


def _replaced(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module under a name, and return the model; the empty name is the model's own."""
    if not name:
        return module
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
    return model


def _described(module: nn.Module) -> str:
    has_parts = bool(list(module.children()))
    return type(module).__name__ if has_parts else str(module)
