"""The lab's commands, the keys of `tune` and `recovery`, and a charged choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dp.commands.wings import CommandWing

if TYPE_CHECKING:
    import typer
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from fl_dp.accounting import PrivacyEvent
    from fl_dp.app.settings import Settings
    from fl_dp.commands.jobs import Jobs


class Lab(CommandWing):
    """Attacks, audits, and hyper-parameters chosen before a training."""

    def add_commands(self, app: typer.Typer) -> None:
        """Add `tune`, `audit` and `attack`."""
        import typer

        from .commands.attack_inversion import inversion
        from .commands.attack_membership import membership
        from .commands.audit import audit
        from .commands.tune import tune

        for command in (tune, audit):
            app.command()(command)
        attack = typer.Typer(
            help="Attack a simulated training: what does it tell about those who took part?",
            no_args_is_help=True,
            rich_markup_mode="markdown",
        )
        attack.command()(membership)
        attack.command()(inversion)
        app.add_typer(attack, name="attack")

    @property
    def groups(self) -> Mapping[str, type]:
        """Keys of a choice of hyper-parameters and of a measured attack."""
        from .attacks.inversion.recovery_settings import RecoverySettings
        from .settings import TuneSettings

        return {"tune": TuneSettings, "recovery": RecoverySettings}

    def charges(self, settings: Settings) -> Sequence[tuple[PrivacyEvent, int]]:
        """The charge of a vote on hyper-parameters, if clients cast one."""
        from fl_dp.lab.tuning.candidates import vote_of

        vote = vote_of(settings)
        return () if vote is None else [(event, 1) for event in vote.events]

    def before_training(
        self, folder: Path, grid: Grid, settings: Settings, *, run_id: str
    ) -> Settings:
        """Choose hyper-parameters, if the settings ask for it."""
        from .settings import tune_of

        if not tune_of(settings).pending:
            return settings
        from fl_dp.app.run_folder import RunFolder

        from .tuning.choice import chosen_settings

        return chosen_settings(RunFolder(folder), grid, settings, run_id=run_id)

    def unit_values(
        self, name: str, index: int, node_config: Mapping[str, Any], config: Mapping[str, Any]
    ) -> NDArray[Any] | None:
        """A unit's score of each candidate, if `name` is `trials`; else None."""
        from .tuning import TRIAL_VALUES

        if name != TRIAL_VALUES:
            return None
        from fl_dp.lab.tuning.trial_scores import scores_of_unit

        return scores_of_unit(index, node_config, config)

    def instead_of_training(self, jobs: Jobs, *, as_json: bool) -> bool:
        """Recover images from a training's updates: `experiment=data_recovery`."""
        from .attacks.inversion.recovery_settings import recovery_settings_of

        if not any(recovery_settings_of(job.settings).attacks for job in jobs.trainings):
            return False
        from .commands.attack_inversion import recover_by_run

        recover_by_run(jobs, as_json=as_json)
        return True


WING = Lab()
