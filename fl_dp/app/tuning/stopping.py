"""Random stopping: the best of a secret random number of trainings, under one charge.

Each training draws a candidate uniformly at random; the best model on the server's public rows is
kept. All trainings and the choice are one event in one ledger. Losers and their number stay with
the server (Papernot and Steinke 2022).

The law covers all trainings begun, under an order of results fixed before. So a failed training
counts, in the last place: otherwise failures on somebody's data would change the number.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fl_dp.accounting import PrivacyBudget, freeze
from fl_dp.accounting.calibration import calibrate_noise
from fl_dp.accounting.events import RandomStoppingEvent
from fl_dp.app.accounts import open_training
from fl_dp.app.cells import digest_of, settings_with
from fl_dp.app.charged_choice import require_choosable
from fl_dp.app.planning import make_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import Settings
from fl_dp.app.settings.tune import TuneSettings
from fl_dp.files import write_text
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import PrivacyLedger
from fl_dp.plan import Plan
from fl_dp.statement import privacy_statement

from .candidates import as_chosen, with_candidate
from .choice import CHOICE, plan_with


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Trainings of one choice, charged before the first.

    Attributes:
        folder: The run's folder; receives the winner.
        candidates: Candidate of each training, in order; their number is as secret as the noise.
        noise_multiplier: Noise multiplier of each training.
        promise_of_one: What one training alone would promise.
        ledger: The run's ledger, open until `close`. It records the time of each opening: a second
            one would reveal how long all trainings took.
    """

    folder: RunFolder
    settings: Settings
    candidates: tuple[str, ...]
    noise_multiplier: float
    promise_of_one: Guarantee
    ledger: PrivacyLedger

    @classmethod
    def begun(cls, folder: RunFolder, settings: Settings) -> Stopped:
        """Charge the choice and draw its trainings.

        Raises:
            FileExistsError: If the folder is taken.
            ValueError: If the settings can't be carried out; nothing is charged then.
        """
        one, whole = stopping_plans(settings)
        folder.create(settings)
        rng = settings.privacy.rng()
        ((event, _),) = whole.other_releases
        assert isinstance(event, RandomStoppingEvent)  # as `stopping_plans` makes it
        ledger = open_training(folder, settings, whole, rng=rng)
        try:
            ledger.reserve_release(CHOICE, event)
            folder.write_statement(privacy_statement(ledger))
        except BaseException:
            ledger.close()
            raise
        candidates = settings.tune.candidates or []
        count = event.law.draw(float(rng.uniforms(1)[0]))
        draws = np.floor(rng.uniforms(count) * len(candidates)).astype(np.int64)
        return cls(
            folder=folder,
            settings=settings,
            candidates=tuple(candidates[draw] for draw in draws),
            noise_multiplier=one.noise_multiplier,
            promise_of_one=Guarantee.of(one),
            ledger=ledger,
        )

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    @property
    def runs(self) -> list[tuple[list[str], Settings]]:
        """Each training's overrides besides the run's own, and its settings."""
        # Witness and account of the choice cover all; another would remember each training.
        alone = [
            f"privacy.noise_multiplier={self.noise_multiplier!r}",
            "privacy.epsilon=null",
            "privacy.witness_dir=null",
            "privacy.account_cap=null",
            "report=none",
        ]
        settings = replace(self.settings, tune=TuneSettings())
        for override in alone:
            key, _, value = override.partition("=")
            settings = settings_with(settings, key, value)
        return [
            ([*alone, *candidate.split()], with_candidate(settings, candidate))
            for candidate in self.candidates
        ]

    def keep(self, folders: Sequence[RunFolder], scores: Sequence[float]) -> None:
        """Keep the best training in the run's folder, and record the choice.

        `scores` are on public rows or of released metrics, in the trainings' order; minus infinity
        or NaN for a failure.

        Raises:
            ValueError: If all failed; the choice stays charged.
        """
        ranked = np.where(np.isnan(scores), -np.inf, scores)
        if ranked.max() == -np.inf:
            raise ValueError(
                "every training of the choice failed, and none can be kept: the choice stays "
                "charged; look at the server's log, and begin another run"
            )
        best = int(np.argmax(ranked))
        name, source = self.candidates[best], folders[best]
        chosen = as_chosen(self.settings, name)
        ledger = self.ledger
        paid = ledger.reservation_of(CHOICE)
        assert paid is not None  # it was reserved when the trainings were drawn
        # The copy gets a new date: the old one tells how many trainings came before.
        shutil.copyfile(source.model, self.folder.model)
        self._write_metrics(source, ledger.plan)
        ledger.commit(paid)
        ledger.choose(
            name,
            how=(
                f"the best of a random number of trainings, drawn from "
                f"{len(self.settings.tune.candidates or ())} candidates, on the server's "
                "public rows, which measure accuracy too"
            ),
            settings=digest_of(chosen),
            plan=plan_with(ledger.plan, chosen),
            paid=paid,
        )
        self.folder.write_statement(privacy_statement(ledger))
        self.folder.write_settings(chosen)

    def _write_metrics(self, source: RunFolder, plan: Plan) -> None:
        # A round of the best training was never released at that training's own epsilon.
        paid = {"epsilon": plan.budget.epsilon, "promise": Guarantee.of(plan).to_dict()}
        lines = [line | paid for line in source.read_metrics()]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_text(self.folder.metrics, text, public=True)


def stopping_plans(settings: Settings) -> tuple[Plan, Plan]:
    """The plan of each training and the choice's, whose one event covers all.

    Privacy: the best training's rounds, against adversaries that see no other training, within
    `privacy.epsilon`; see `RandomStoppingEvent`.

    Raises:
        ValueError: If the settings can't be carried out, or no noise reaches the budget.
    """
    require_choosable(settings)
    privacy, tune = settings.promise, settings.tune
    assert privacy.epsilon is not None  # as was checked
    alone = replace(settings, tune=TuneSettings())
    draft = make_plan(
        replace(alone, privacy=privacy.with_values(epsilon=None, noise_multiplier=1.0))
    )

    def event(noise: float) -> RandomStoppingEvent:
        releases = freeze([*draft.rounds_at(noise), *draft.other_releases])
        return RandomStoppingEvent(releases=releases, mean_runs=tune.mean_runs, shape=tune.shape)

    try:
        noise = calibrate_noise(
            lambda noise: {event(noise): 1},
            privacy.epsilon,
            draft.budget.delta,
            neighboring_relation=draft.neighboring_relation,
            context="in a random number of trainings",
        )
    except ValueError as error:
        raise ValueError(
            f"{error}; tune.by=stopping needs rounds with a Renyi bound, and room for "
            "log(tune.mean_runs): raise privacy.epsilon, or write tune.by=vote"
        ) from error
    one = make_plan(
        replace(alone, privacy=privacy.with_values(epsilon=None, noise_multiplier=noise))
    )
    whole = replace(
        one,
        budget=PrivacyBudget(epsilon=privacy.epsilon, delta=draft.budget.delta),
        rounds=0,
        other_releases=((event(noise), 1),),
    )
    return one, whole
