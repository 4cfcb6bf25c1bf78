"""Attacks by name, and views of the adversary in words; they need no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .inversion_attack import Attack


def _analytic(steps: int) -> Attack:
    from .analytic import AnalyticInversion

    return AnalyticInversion()


def _dlg(steps: int) -> Attack:
    from .matching import DeepLeakage

    return DeepLeakage(steps=steps)


def _idlg(steps: int) -> Attack:
    from .matching import DeepLeakage

    return DeepLeakage(knows_labels=True, steps=steps)


def _inverting_gradients(steps: int) -> Attack:
    from .matching import InvertingGradients

    return InvertingGradients(steps=steps, restarts=1)


def _token_spans(steps: int) -> Attack:
    from .token_spans import TokenSpans

    return TokenSpans()


ATTACKS: Mapping[str, Callable[[int], Attack]] = {
    "analytic": _analytic,
    "dlg": _dlg,
    "idlg": _idlg,
    "inverting_gradients": _inverting_gradients,
    "token_spans": _token_spans,
}
"""Attacks by their names in `recovery.attacks`, each a function of the most steps of its search."""

ON_TOKENS = ("token_spans",)
"""Those that recover text; the others recover images."""

WORDS = {
    "raw": "the raw update of one client",
    "local_steps": "the raw update, after several local steps",
    "clipped": "the clipped update of one client",
    "secure_sum": "a secure sum, without noise",
    "client_noise": "one client's update with its own noise",
    "released_others_known": "the released model, all other clients known",
    "released": "the released model",
    "secure_sum_noise": "a secure sum with noise in shares",
    "dp_sgd": "one client's update by DP-SGD",
}
"""Views of the adversary, for people; `experiment.Recovery` makes their threat models."""
