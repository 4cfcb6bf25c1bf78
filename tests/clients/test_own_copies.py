"""What a record or a client gets is a copy in which it meets no other one."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from moved_sums import CLASSES, VECTORS, T, data, head, largest_move, summed_by
from torch import Tensor, nn

from fl_dp.clients.per_record.clipped_gradients import clipped_sum
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.own_copies import own_copy_of
from fl_dp.clients.per_record.record_loss import LossOfEach
from fl_dp.clients.per_record.single_records import SingleRecords
from fl_dp.clients.per_record.vmap_rules import OwnRule

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
]

LOSS = LossOfEach(nn.CrossEntropyLoss())


class Kept:
    """An object that its copies share."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        return self


class Viewing:
    """An object whose copies are others, of the same memory."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __deepcopy__(self, memo: dict[int, Any]) -> Viewing:
        return Viewing(self.values[:])


class InSlots:
    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[int] = [1]

    def __deepcopy__(self, memo: dict[int, Any]) -> InSlots:
        other = InSlots()
        other.values = self.values
        return other


class Remembering(nn.Module):
    """Adds what it has seen of earlier records."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.kept = head(T), kept

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x + sum(self.kept.values))
        self.kept.values.append(20.0 * x.detach())
        return out


def move_of(module: nn.Module) -> float:
    x, y = data(VECTORS, 6)
    template = ModuleTemplate(module)
    way = SingleRecords(template, LOSS, one_by_one=True)
    return largest_move(summed_by(template, way, 0.01), x, y, 0.01)


def test_state_that_copies_share_is_refused_as_it_would_move_the_sum_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r"does not copy 'kept' \(Kept\), in which records could"):
        move_of(Remembering(Kept()))
    # The power: without the walk several norms.
    monkeypatch.setattr("fl_dp.clients.per_record.own_copies.require_own", lambda *_: ())
    monkeypatch.setattr("fl_dp.clients.per_record.module_template.require_own", lambda *_: ())
    assert move_of(Remembering(Kept())) > 1.2


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (Kept, "part"),
        (lambda: {"a": [Kept()]}, "part.a"),
        (lambda: functools.partial(print, Kept()), "part"),
        (lambda: Viewing(torch.zeros(3)), "part.values"),
        (lambda: Viewing(np.zeros(3)), "part.values"),
        (lambda: np.array([Kept()]), "part"),
        (InSlots, "part"),
        (lambda: [].append, "part"),
        (lambda: {}.get, "part"),
        (lambda: torch.zeros(3).add_, "part"),
        (lambda: functools.lru_cache(len), "part"),
        (lambda: Kept().__deepcopy__, "part"),
    ],
)
def test_whatever_is_shared_is_named(make: Callable[[], Any], path: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].part = make()
    with pytest.raises(ValueError, match=rf"does not copy '0\.{path}' "):
        own_copy_of(module)


def test_a_weak_reference_leads_to_the_module_that_was_copied() -> None:
    module = nn.Linear(2, 2)
    module.me = weakref.ref(module)  # type: ignore[assignment]  # torch: a tensor or a module
    with pytest.raises(ValueError, match=r"does not copy 'me' \(Linear\)"):
        own_copy_of(module)


class RemembersWeakly(nn.Module):
    """Adds what it has seen of earlier records, through a weak reference to its buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = head(T)
        self.register_buffer("seen", torch.zeros(T))
        self.reference = weakref.ref(self.seen)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.reference()
        assert isinstance(seen, Tensor)
        out: Tensor = self.a(x + seen)
        seen.add_(20.0 * x.detach().sum(0))
        return out


def test_a_weak_reference_leads_to_a_tensor_that_copies_would_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r"does not copy 'reference' \(Tensor\)"):
        move_of(RemembersWeakly())
    # The power: without the walk several norms.
    monkeypatch.setattr("fl_dp.clients.per_record.own_copies.require_own", lambda *_: ())
    monkeypatch.setattr("fl_dp.clients.per_record.module_template.require_own", lambda *_: ())
    assert move_of(RemembersWeakly()) > 1.2


def test_recurrent_layers_may_refer_weakly_to_their_weights() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.LSTM(2, 2), "weight_hh_l0")
    own_copy_of(nn.Sequential(layer))
    own_copy_of(nn.GRU(2, 2))


def test_what_can_not_be_copied_is_said_in_one_line() -> None:
    module = nn.Linear(2, 2)
    module.lock = threading.Lock()  # type: ignore[assignment]  # torch: a tensor or a module
    with pytest.raises(ValueError, match=r"can't copy the Linear \(cannot pickle '_thread.lock'"):
        own_copy_of(module)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_of_a_gradient_which_copies_would_lose_is_refused(register: str) -> None:
    """Before, weights that it masked were trained, and got noise."""
    layer = nn.Linear(2, 2)
    handle = getattr(layer.weight, register)(lambda gradient: None)
    with pytest.raises(ValueError, match=r"'0\.weight' has a hook of its gradient"):
        own_copy_of(nn.Sequential(layer))
    handle.remove()
    own_copy_of(nn.Sequential(layer))


def test_values_functions_and_what_copies_well_pass() -> None:
    module = nn.Sequential(nn.LSTM(2, 2), nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    module[1].register_forward_hook(lambda *_: None)
    parts: Sequence[Any] = (
        lambda x: x,
        torch.relu,
        torch.ops.aten.relu,
        torch.float32,
        torch.device("cpu"),
        torch.Generator(),
        np.random.default_rng(0),
        np.dtype("f4"),
        np.add,
        logging.getLogger("a"),
        functools.partial(torch.sum, dim=0),
        (1, "a", frozenset({2}), None, ...),
        [torch.zeros(0), np.zeros(3)[1:]],
        torch.distributions.Normal(0.0, 1.0),
    )
    for number, part in enumerate(parts):
        setattr(module[1], f"part_{number}", part)
    own_copy_of(module)


def test_a_loss_is_copied_as_a_model_is() -> None:
    class Loss(nn.CrossEntropyLoss):
        def __init__(self) -> None:
            super().__init__()
            self.kept = Kept()

    with pytest.raises(ValueError, match=r"does not copy '_criterion\.kept' \(Kept\)"):
        SingleRecords(ModuleTemplate(head(T)), LossOfEach(Loss()))


# Weights that a copy is given.


class OfItsOwn(nn.Linear):
    """A layer whose copies take its weights, and no others."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OfItsOwn:
        other = OfItsOwn(self.in_features, self.out_features)
        other.load_state_dict(self.state_dict())
        return other


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.jit.script(head(T)),
        lambda: torch.jit.trace(head(T), torch.ones(1, T)),  # type: ignore[no-untyped-call]  # torch
        lambda: nn.Sequential(nn.Linear(T, T), torch.jit.script(head(T))),
        lambda: OfItsOwn(T, CLASSES),
    ],
)
def test_what_can_not_be_given_a_step_s_weights_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"can't be given other weights.*torch\.jit"):
        ModuleTemplate(make())


@pytest.mark.parametrize(
    "view", [lambda weight: weight[:2], lambda weight: weight.detach(), lambda weight: weight.data]
)
def test_a_view_of_a_weight_would_stay_as_it_was(view: Callable[[Tensor], Tensor]) -> None:
    first, last = nn.Linear(T, T), head(T)
    vars(last)["views"] = [view(first.weight)]
    module = nn.Sequential(first, last)
    with pytest.raises(ValueError, match=r"'1\.views' is a view of a trained parameter"):
        ModuleTemplate(module)
    first.requires_grad_(False)
    ModuleTemplate(module)
    ModuleTemplate(nn.Sequential(nn.utils.spectral_norm(head(T))))


@pytest.mark.parametrize("one_by_one", [False, True])
def test_each_step_s_gradient_is_at_that_step_s_weights(one_by_one: bool) -> None:
    x, y = data(VECTORS, 5)
    model = nn.Sequential(nn.Linear(T, T), nn.Tanh(), head(T))
    template = ModuleTemplate(model)
    way = SingleRecords(template, LOSS, one_by_one=one_by_one)
    summed = summed_by(template, way, 1e6)
    before = summed(x, y)
    with torch.no_grad():
        for parameter in template.parameters.values():
            parameter.add_(0.5)
    template.write_to(model)
    expected = torch.autograd.grad(
        nn.functional.cross_entropy(model(x), y, reduction="sum"), list(model.parameters())
    )
    flat = torch.cat([part.double().flatten() for part in expected])
    torch.testing.assert_close(summed(x, y), flat, rtol=1e-5, atol=1e-6)
    assert float((before - flat).norm()) > 0.1


# Rules of vmap.


def ones(squares: Tensor) -> tuple[Tensor, None]:
    return torch.ones_like(squares), None


class Centring(torch.autograd.Function):
    """Whose rule of vmap sees all records."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x - x.mean(in_dims[0], keepdim=True), in_dims[0]


class Around(torch.autograd.Function):
    """Whose rule is made of the other one's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        out: Tensor = Centring.apply(x)  # type: ignore[no-untyped-call]  # torch
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Alone(Around):
    """Whose rule is PyTorch's."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2.0 * x


@torch.library.custom_op("fl_dp_tests::centring", mutates_args=())
def centring(x: Tensor) -> Tensor:
    """Do nothing, but under vmap."""
    return x.clone()


@centring.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


centring.register_vmap(Centring.vmap)
centring.register_autograd(lambda ctx, gradient: gradient)


class Calling(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.function = head(T), function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(self.function(x))
        return out


@pytest.mark.parametrize("function", [Centring.apply, Around.apply, lambda x: centring(x)])
def test_records_do_not_meet_in_a_rule_of_vmap(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data(VECTORS, 6)
    template = ModuleTemplate(Calling(function))
    way = SingleRecords(template, LOSS)
    with pytest.raises(OwnRule, match="generate_vmap_rule = True"):
        way.by_notes(x, y, ones)
    assert largest_move(summed_by(template, way, 0.01), x, y, 0.01) <= 1.0 + 1e-6
    # The power: with the rule more than one norm.
    monkeypatch.setattr("fl_dp.clients.per_record.vmap_rules.NoOwnRules.__enter__", lambda _: None)
    monkeypatch.setattr("fl_dp.clients.per_record.vmap_rules.NoOwnRules.__exit__", lambda *_: None)
    assert largest_move(summed_by(template, way, 0.01), x, y, 0.01) > 1.2


def test_a_rule_that_pytorch_makes_is_used() -> None:
    x, y = data(VECTORS, 6)
    way = SingleRecords(ModuleTemplate(Calling(Alone.apply)), LOSS)
    expected = clipped_sum(way.by_autograd(x, y), ones)
    for one, other in zip(way.by_notes(x, y, ones), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert torch.vmap(Centring.apply)(x).mean(0).abs().max() < 1e-6  # others' own are back
