"""Names that settings, cells and pictures share, told without torch."""

from __future__ import annotations

ATTACKS = ("analytic", "dlg", "idlg", "inverting_gradients")
"""See `AnalyticInversion`, `DeepLeakage` without and with known labels, `InvertingGradients`."""

WITHOUT_NOISE = ("raw", "local_steps", "clipped", "secure_sum")
WITH_NOISE = (
    "client_noise",
    "released_others_known",
    "released",
    "secure_sum_noise",
    "dp_sgd",
)
THREATS = (*WITHOUT_NOISE, *WITH_NOISE)
"""What the adversary sees; `experiment.Recovery` makes the threat models of them."""

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
"""The same for people."""
