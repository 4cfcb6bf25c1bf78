"""Trackers of the app's training, and the settings and promise they get."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_dp.app.keys import all_keys
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import OPTIONS, Settings, TrackingSettings
from fl_dp.app.settings.options import chosen_by
from fl_dp.app.settings.sweep import SWEEP
from fl_dp.app.tracking import RunStart, Tracker, require_installed, round_values
from fl_dp.app.tracking.tracker import Scalar
from fl_dp.documents import flattened
from fl_dp.files import write_text
from fl_dp.guarantee import Guarantee
from fl_dp.plan import Plan, RecordPlan

TRACKED = frozenset(
    [
        *(key.name for key in all_keys().values() if key.tracked),
        *(f"{group}.{chosen_by(group)}" for group in OPTIONS if group != "tracking"),
    ]
)
"""Settings that trackers get: those whose fields are marked `tracked`."""


def trackers_of(settings: Settings, folder: RunFolder) -> list[Tracker]:
    """The settings' trackers; they write and show nothing yet.

    Raises:
        ModuleNotFoundError: A package is missing.
        ValueError: The metrics' port is in use.
    """
    tracking = settings.tracking
    pages: list[Tracker] = []
    if tracking.metrics_port is not None:
        from fl_dp.app.tracking.metrics_page import MetricsPage

        pages.append(MetricsPage(tracking.metrics_port))
    if tracking.name == "none":
        return pages
    shared = folder.path if _sweep_of(folder) is None else folder.path.parent
    return [*pages, make_tracker(tracking, folder.path, shared=shared)]


def make_tracker(settings: TrackingSettings, folder: Path, *, shared: Path) -> Tracker:
    """The settings' tracker; it writes nothing yet.

    `shared` is the folder of the run's sweep, or of the run without a sweep.

    Raises:
        ModuleNotFoundError: Its package is missing.
        ValueError: The settings ask for none.
    """
    require_installed(settings.name)
    # Imported in the training's own thread: W&B's import parses source, which Python 3.11 stops
    # with a SystemError if a finalizer or another thread parses as well. A failed import is tried
    # again, and reported, when the tracker starts.
    with suppress(Exception):
        import_module(settings.name)
    return settings.make(folder, shared=shared)


def start_of(
    settings: Settings,
    folder: RunFolder,
    *,
    plan: Plan | None,
    record_plan: RecordPlan | None,
    resumed: bool,
) -> RunStart:
    """What trackers get when a run begins or continues.

    The folder has the metrics of rounds that stay; `resumed`: whether there are such.
    """
    sweep = _sweep_of(folder)
    name = folder.path.name
    if sweep is not None:
        name = f"{sweep}/{name}"
    before = tuple(round_values(line) for line in folder.read_metrics()) if resumed else ()
    return RunStart(
        name=name,
        identity=_identity(folder),
        group=sweep,
        rounds=settings.rounds,
        before=before,
        settings=tracked_settings(settings),
        promise=_promise(plan, record_plan, settings),
    )


def tracked_settings(settings: Settings) -> dict[str, Scalar]:
    """Settings that trackers get, by key; lists as JSON, without null."""
    scalars: dict[str, Scalar] = {}
    for key, value in flattened(asdict(settings)).items():
        if key in TRACKED and value is not None:
            scalars[key] = value if isinstance(value, str | int | float) else json.dumps(value)
    return scalars


def final_of(statement: Mapping[str, Any]) -> dict[str, Any]:
    """What a privacy statement says was spent, under trackers' names."""
    records = statement.get("records")
    final: dict[str, Any] = {"final/rounds": statement.get("rounds")}
    for prefix, promise in (("", statement), ("record_", records)):
        if promise is not None:
            final[f"final/{prefix}epsilon"] = _quoted(promise)
            final[f"final/{prefix}delta"] = promise.get("delta")
            final[f"final/{prefix}guarantee"] = str(Guarantee.stated(promise))
    return final


def _quoted(statement: Mapping[str, Any]) -> Any:
    return dict(statement.get("epsilon") or {}).get(statement.get("quoted"))


def _promise(
    plan: Plan | None, record_plan: RecordPlan | None, settings: Settings
) -> dict[str, Any]:
    insecure = settings.privacy.get("insecure_seed") is not None
    values: dict[str, Any] = {"promise/insecure": insecure}
    if plan is not None:
        values |= {
            "promise/epsilon": plan.budget.epsilon,
            "promise/delta": plan.budget.delta,
            "promise/unit": plan.unit,
            "promise/neighboring_relation": str(plan.neighboring_relation),
            "promise/noise_multiplier": plan.noise_multiplier,
            "promise/clipping_norm": plan.clipping_norm,
            "promise/expected_cohort": plan.expected_cohort,
            "promise/guarantee": Guarantee.of(plan, insecure=insecure).planned,
        }
    if record_plan is not None:
        values |= {
            "promise/record_epsilon": record_plan.budget.epsilon,
            "promise/record_delta": record_plan.budget.delta,
            "promise/record_noise_multiplier": record_plan.noise_multiplier,
            "promise/record_guarantee": Guarantee.of(record_plan).planned,
        }
    return values


def _sweep_of(folder: RunFolder) -> str | None:
    above = folder.path.absolute().parent
    if (above / SWEEP).is_file():
        return above.name
    return None


def _identity(folder: RunFolder) -> str:
    """A run's random name, kept when it is resumed."""
    if not folder.identity.is_file():
        write_text(folder.identity, secrets.token_hex(8))
    return folder.identity.read_text(encoding="utf-8").strip()
