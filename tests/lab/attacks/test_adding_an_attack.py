"""Whoever follows the row of an attack has one that is played by its name."""

from __future__ import annotations

from pathlib import Path

from additions import Addition, check_row, copy_with, run_in

ATTACK = Addition(
    row="attack",
    written={
        "fl_dp/lab/attacks/inversion/all_grey.py": '''
"""A guess without looking."""

from collections.abc import Sequence

import torch

from .inversion_attack import Attack, RoundObservation, PixelRange, Recovered


class AllGrey(Attack):
    """Says that each image is grey, and each label 0."""

    def recover(
        self,
        observations: Sequence[RoundObservation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """Return grey images."""
        return [
            Recovered(
                features=pixels.from_unit(torch.full((each.records, *input_shape), 0.5)),
                labels=torch.zeros(each.records, dtype=torch.int64),
            )
            for each in observations
        ]
'''
    },
    registered={
        "fl_dp/lab/attacks/inversion/registry.py": {
            "def _dlg(": (
                "def _all_grey(steps: int) -> Attack:\n"
                "    from .all_grey import AllGrey\n\n"
                "    return AllGrey()\n\n\n"
                "def _dlg("
            ),
            '    "dlg": _dlg,\n': '    "all_grey": _all_grey,\n    "dlg": _dlg,\n',
        }
    },
)

PROGRAM = """
from attacked_images import DIGITS, ONE_STEP, attacked, images, network

from fl_dp.app.compose import compose_settings
from fl_dp.lab.attacks.inversion.threats import RawUpdate
from fl_dp.lab.attacks.inversion.registry import ATTACKS

settings = compose_settings(["experiment=data_recovery", "recovery.attacks=[all_grey]"])
seen = RawUpdate(training=ONE_STEP).observe(network("logistic"), [images([7])], seed=0)
(name,) = settings.recovery.attacks
made = attacked(ATTACKS[name](settings.recovery.steps), seen)
print(float(made.features.std()), made.labels.tolist())
"""


def test_the_row_names_the_files_and_their_number() -> None:
    check_row(ATTACK)


def test_an_attack_that_was_added_is_chosen_and_played(tmp_path: Path) -> None:
    copy = copy_with([ATTACK], tmp_path / "copy", without=["viewer"])
    support = Path(__file__).resolve().parents[1] / "support"
    assert run_in(copy, PROGRAM, support).splitlines()[-1] == "0.0 [0]"
