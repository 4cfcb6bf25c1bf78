"""Low-rank updates of frozen linear layers (LoRA), one factor or both trained.

    >>> model = add_low_rank(pretrained, rank=4, seed=0)  # A and all else frozen: B is trained

A layer computes `W x + B A x`. Noise on both factors multiplies: with noise Z on A and Y on B,

    (B + Y)(A + Z) - B A = B Z + Y A + Y Z,

where `Y Z` grows with the square of the noise. Clipping acts on the factors, not on the product
that the layer uses. With A frozen the update is linear in what is noised: only `Y A` remains.

References:
    Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models".
    Sun et al. 2024, "Improving LoRA in Privacy-preserving Federated Learning" (FFA-LoRA).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_dp.tasks.fit import TRAINED_FACTORS


class LowRankLinear(nn.Module):
    """A frozen linear layer plus `B A`, of parameters `a.weight` and `b.weight`.

    Attributes:
        base: The frozen layer.
        a: Maps to `rank` numbers, random at first.
        b: Maps back to the outputs, zero at first: the model starts unchanged.
    """

    def __init__(self, base: nn.Linear, rank: int) -> None:
        """Freeze a layer and add the factors, in its dtype and on its device.

        Raises:
            ValueError: If the rank is below 1 or above the layer's smaller side.
        """
        super().__init__()
        most = min(base.in_features, base.out_features)
        if not 1 <= rank <= most:
            raise ValueError(
                f"rank {rank} does not fit a layer from {base.in_features} to {base.out_features}: "
                f"write 1 to {most}"
            )
        self.base = base.requires_grad_(False)
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.a = nn.Linear(base.in_features, rank, bias=False, **like)
        self.b = nn.Linear(rank, base.out_features, bias=False, **like)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return `W x + bias + B A x`."""
        out: Tensor = self.base(x) + self.b(self.a(x))
        return out


def add_low_rank(model: nn.Module, *, rank: int, seed: int, train: str = "b") -> nn.Module:
    """Freeze a model and add low-rank updates to its linear layers.

    Build it at the server and every node from the same model and seed: A is then equal everywhere
    and need not travel. Exchange the trained parameters (`exchanged_arrays(model)`, or
    `SharedPart.of(names, None, frozen=...)`).

    Args:
        model: Changed in place; a linear layer smaller than the rank gets its smaller side.
        rank: Rank of the updates, at least 1.
        seed: Seed of A, at least 0. The global random state does not change.
        train: `b`, where A keeps its first values, or `both`.

    Raises:
        ValueError: If an argument is out of range or the model has no linear layer.
    """
    if rank < 1:
        raise ValueError(f"rank is {rank}; write at least 1")
    if train not in TRAINED_FACTORS:
        raise ValueError(f"train is '{train}'; write one of {', '.join(TRAINED_FACTORS)}")
    # Layers of other classes compute something else with their weights.
    modules = model.named_modules()
    layers = [(name, module) for name, module in modules if type(module) is nn.Linear]
    if not layers:
        raise ValueError("the model has no linear layer: LoRA has nothing to update")
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name, layer in layers:
            layer_rank = min(rank, layer.in_features, layer.out_features)
            added = LowRankLinear(layer.cpu(), layer_rank).to(layer.weight.device)
            added.a.requires_grad_(train == "both")
            if not name:
                model = added
                continue
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, added)
    return model
