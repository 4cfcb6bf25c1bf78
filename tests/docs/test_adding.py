"""Whoever follows a row of "I want to add ..." has something that trains and is charged.

Each thing is added to a copy of the package by touching the files of its row, and no other; all of
them are then used in one process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from additions import Addition, check_row, copy_with, run_in

SELECTION = Addition(
    row="selection",
    written={
        "strategies/in_turn.py": '''
"""Units in the order of the roster."""

from collections.abc import Sequence

from fl_dp.accounting import VisibleSampling

from .roster import Unit
from .selection import Draw, Selection


class InTurnSelection(Selection):
    """The next `cohort` units of the roster in each round; who takes part is seen."""

    def __init__(self, sampling: VisibleSampling) -> None:
        """Let so many units take part in each round."""
        self.sampling: VisibleSampling = sampling

    def select(self, draw: Draw) -> Sequence[Unit]:
        """Return the units whose turn it is."""
        first = (draw.server_round - 1) * self.sampling.cohort
        places = range(first, first + min(self.sampling.cohort, len(draw.roster)))
        return [draw.roster[place % len(draw.roster)] for place in places]
'''
    },
    registered={
        "strategies/__init__.py": {
            "from .modes import ": "from .in_turn import InTurnSelection\nfrom .modes import ",
            '    "LawSelection",\n': '    "InTurnSelection",\n    "LawSelection",\n',
        }
    },
)

MECHANISM = Addition(
    row="mechanism",
    written={
        "fl_dp/mechanisms/twice_laplace.py": '''
"""Laplace noise, and as much again."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .clipping import Norm
from .events import LaplaceEvent
from .grid import GridMechanism, IntegerLaw
from .laplace import DiscreteLaplace
from .randomness import SecureRandom


class TwiceLaplace(IntegerLaw):
    """The law of the sum of two draws of `DiscreteLaplace`."""

    def _propose(self, count: int, rng: SecureRandom) -> NDArray[np.int64]:
        once = DiscreteLaplace(self.scale)
        return once.sample(count, rng) + once.sample(count, rng)


@dataclass(frozen=True, kw_only=True)
class TwiceLaplaceMechanism(GridMechanism):
    """Release a sum of L1-clipped vectors with two independent Laplace noises.

    Privacy: as `LaplaceMechanism`, whose release it adds noise to.
    """

    clipping: Norm = Norm.L1

    def event(self) -> LaplaceEvent:
        """Return the event of the first noise; the second is post-processing."""
        return LaplaceEvent(noise_multiplier=self.noise_multiplier)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum: two scales."""
        return 2.0 * self.noise_scale

    @cached_property
    def law(self) -> TwiceLaplace:
        """The law of the noise on each coordinate of the sum, in grid steps."""
        return TwiceLaplace(self.noise_scale / self.grid)
'''
    },
    registered={
        "fl_dp/mechanisms/__init__.py": {
            "from .schemes import ": (
                "from .twice_laplace import TwiceLaplaceMechanism\nfrom .schemes import "
            ),
            '    "WhiteStream",\n': '    "TwiceLaplaceMechanism",\n    "WhiteStream",\n',
        }
    },
)

SCHEME = Addition(
    row="client scheme",
    written={
        "fl_dp/mechanisms/rounded_gaussian.py": '''
"""Gaussian noise at the client, rounded."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .gaussian import GaussianMechanism
from .randomness import SecureRandom


@dataclass(frozen=True, kw_only=True)
class RoundedGaussianMechanism(GaussianMechanism):
    """A Gaussian release, rounded to quarters of its noise.

    Privacy: as `GaussianMechanism`; rounding a release costs nothing.
    """

    def privatize(self, update: ArrayLike, rng: SecureRandom) -> NDArray[np.float64]:
        """Return the rounded private vector."""
        step = self.noise_std / 4.0
        return np.asarray(np.rint(super().privatize(update, rng) / step) * step)
'''
    },
    registered={
        "fl_dp/mechanisms/__init__.py": {
            "from .randomness import SecureRandom\n": (
                "from .randomness import SecureRandom\n"
                "from .rounded_gaussian import RoundedGaussianMechanism\n"
            ),
            '    "ScalarMetric",\n': '    "RoundedGaussianMechanism",\n    "ScalarMetric",\n',
        },
        "fl_dp/mechanisms/schemes.py": {
            "from .randomness import SecureRandom\n": (
                "from .randomness import SecureRandom\n"
                "from .rounded_gaussian import RoundedGaussianMechanism\n"
            ),
            '    "gaussian": GaussianMechanism,\n': (
                '    "gaussian": GaussianMechanism,\n    "rounded": RoundedGaussianMechanism,\n'
            ),
        },
    },
)

TASK = Addition(
    row="task",
    written={
        "fl_dp/tasks/datasets/stripes.py": '''
"""Images of stripes, upright or lying."""

import numpy as np

from .dataset import Dataset
from .held_out import with_test_part


def load_stripes() -> Dataset:
    """Return 100 images of 4x4, half of them upright."""
    upright = np.tile(np.float32([0, 1]), (4, 2))
    images = np.stack([upright, upright.T] * 50)[:, None]
    return with_test_part("stripes", images, np.arange(100) % 2, num_classes=2)
''',
        "conf/task/stripes.yaml": "name: stripes\nnum_clients: 20\npartition: iid\n",
    },
    registered={
        "fl_dp/tasks/datasets/data_source.py": {
            '"digits": Form((1, 8, 8), 10), ': (
                '"digits": Form((1, 8, 8), 10), "stripes": Form((1, 4, 4), 2), '
            )
        }
    },
)

SELECTION_OF_APP = Addition(
    row="selection of the app",
    written={},
    registered={
        "fl_dp/app/settings/selections.py": {
            "class SelectionOption(": '''def in_turn(
    num_clients: int, *, sampling_rate: Rate = 0.25, participation_cap: Count | None = None
) -> Selection:
    """Return clients in the order of the roster.

    Args:
        num_clients: Number of clients of the roster.
        sampling_rate: As for `poisson`.
        participation_cap: Most rounds of one client; None charges every round.
    """
    from fl_dp.strategies import InTurnSelection

    size = cohort(sampling_rate, num_clients)
    return InTurnSelection(VisibleSampling(cohort=size, participation_cap=participation_cap))


class SelectionOption(''',
            "        _selection(fixed, FixedSizeSampling),\n": (
                "        _selection(fixed, FixedSizeSampling),\n"
                "        _selection(in_turn, VisibleSampling, participation_cap=key()),\n"
            ),
        }
    },
)

CLIPPING = Addition(
    row="clipping",
    written={},
    registered={
        "fl_dp/mechanisms/clipping_rules.py": {
            "Clipping: TypeAlias = FixedClipping |": '''@dataclass(frozen=True, kw_only=True)
class PowerClipping:
    """One L2 bound on the whole update, a power of two.

    Attributes:
        power: Of two.
    """

    kind: ClassVar[str] = "power"
    power: int

    @property
    def first_norms(self) -> tuple[float, ...]:
        """Bounds of the first round."""
        return (2.0**self.power,)


Clipping: TypeAlias = FixedClipping | PowerClipping |''',
        },
        "fl_dp/mechanisms/__init__.py": {
            "FixedClipping, PerLayerClipping\n": "FixedClipping, PerLayerClipping, PowerClipping\n",
            '    "PerLayerClipping",\n': '    "PerLayerClipping",\n    "PowerClipping",\n',
        },
        "fl_dp/app/settings/clippings.py": {
            "FixedClipping, PerLayerClipping\n": "FixedClipping, PerLayerClipping, PowerClipping\n",
            '    "adaptive": _clipping(': (
                '    "power": _clipping("power", made_by(PowerClipping, power=key(default=-2))),\n'
                '    "adaptive": _clipping('
            ),
        },
    },
)

SCHEDULE = Addition(
    row="schedule",
    written={},
    registered={
        "fl_dp/accounting/noise_schedule.py": {
            "# Each gives the late version": """def _square(rounds: int, floor: float) -> _Weights:
    return floor + (1.0 - floor) * np.linspace(0.0, 1.0, rounds) ** 2


# Each gives the late version""",
            '    "step": _step,\n': '    "step": _step,\n    "square": _square,\n',
        }
    },
)

PROMISE_OF_APP = Addition(
    row="promise of the app",
    written={},
    registered={
        "fl_dp/app/settings/promises.py": {
            '        _planned("local", unit=key(), scheme=key(choices=tuple(SCHEMES))),\n': (
                '        _planned("local", unit=key(), scheme=key(choices=tuple(SCHEMES))),\n'
                '        _planned("rounded", plan="local", unit=key(), '
                'scheme=key(default="rounded")),\n'
            ),
        }
    },
)

OPTIMIZER = Addition(
    row="server optimizer",
    written={},
    registered={
        "fl_dp/app/settings/optimizers.py": {
            "def _falling(": '''def half() -> Strategy:
    """Return half of the mean update."""
    from flwr.serverapp.strategy import FedAvgM

    return FedAvgM(server_learning_rate=0.5, server_momentum=0.0)


def _falling(''',
            '        _server("fedavg", fedavg),\n': (
                '        _server("fedavg", fedavg),\n        _server("half", half),\n'
            ),
        }
    },
)

SETTING = Addition(
    row="setting",
    written={},
    registered={
        "fl_dp/app/settings/promises.py": {
            "    delta: Annotated[float, between_0_and_1] | None = None,\n": (
                "    delta: Annotated[float, between_0_and_1] | None = None,\n"
                "    delta_power: Positive = 1.1,\n"
            ),
            '            -1.1.\n    """': (
                "            -1.1.\n"
                "        delta_power: A delta that nobody writes is `num_clients` to minus this.\n"
                '    """'
            ),
            "default_delta(num_units())": "num_units() ** -delta_power",
            "epsilon=key(), delta=key())": "epsilon=key(), delta=key(), delta_power=key())",
        },
    },
)

TUNABLE = Addition(
    row="tunable key",
    written={},
    registered={
        "fl_dp/app/settings/optimizers.py": {
            "epochs: Count = 5, batch_size: Count = 32\n": (
                "epochs: Count = 5, batch_size: Count = 32, patience: Count = 3\n"
            ),
            "batch_size=_TUNABLE)": "batch_size=_TUNABLE, patience=_TUNABLE)",
        }
    },
)

TRACKER = Addition(
    row="tracker",
    written={
        "fl_dp/app/tracking/text_lines.py": '''
"""Released values as lines of a text file."""

from collections.abc import Mapping
from pathlib import Path

from .tracker import RunStart, Scalar


class LinesTracker:
    """Writes one line for each call."""

    def __init__(self, folder: Path) -> None:
        """Name the folder of the file."""
        self._file = folder / "lines.txt"

    def started(self, run: RunStart) -> None:
        """Write the name."""
        self._file.write_text(f"{run.name}\\n", encoding="utf-8")

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write the round."""
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(f"{server_round} {dict(values)}\\n")

    def ended(self, state: str, final: Mapping[str, Scalar]) -> None:
        """Write nothing."""
'''
    },
    registered={
        "fl_dp/app/settings/tracking.py": {
            "def _check_uri": '''@dataclass(kw_only=True)
class LinesSettings(TrackingSettings):
    """A text file in the run's folder."""

    name: str = "lines"

    def make(self, folder: Path, *, shared: Path) -> Tracker:
        """Return the tracker."""
        from fl_dp.app.tracking.text_lines import LinesTracker

        return LinesTracker(folder)


def _check_uri''',
            "    TensorBoardSettings(),\n": "    TensorBoardSettings(),\n    LinesSettings(),\n",
        }
    },
)

ADDITIONS = (
    SELECTION,
    SELECTION_OF_APP,
    MECHANISM,
    SCHEME,
    CLIPPING,
    SCHEDULE,
    PROMISE_OF_APP,
    OPTIMIZER,
    TASK,
    SETTING,
    TUNABLE,
    TRACKER,
)

PROGRAM = """
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
from local_grid import FIRST_NODE, answer_with_app, answer_with_update
from trainings import FixedClient, client_fn, plan_of, record, train
from typer.testing import CliRunner

from fl_dp.accounting import VisibleSampling
from fl_dp.accounting.events import event_to_dict
from fl_dp.app.compose import compose_settings
from fl_dp.app.keys import all_keys
from fl_dp.app.tracking import RunStart
from fl_dp.app.trackers import make_tracker
from fl_dp.clients import numpy_client_app
from fl_dp.commands.app import app
from fl_dp.mechanisms import FixedClipping, SecureRandom, TwiceLaplaceMechanism
from fl_dp.accounting import VisibleSampling
from fl_dp.strategies import InTurnSelection


def charged(trained):
    return [[event_to_dict(event), count] for event, count in trained.ledger.history]


found = {}

selection = InTurnSelection(VisibleSampling(cohort=2))
plan = plan_of(5, rounds=3, sampling=selection.sampling, noise_multiplier=0.5)
trained = train(
    Path("."), plan, answer_with_update([{}] * 5), record(w=np.zeros(3)), selection=selection
)
nodes = [message.metadata.dst_node_id - FIRST_NODE for message in trained.grid.sent]
found["selection"] = {"asked": nodes, "charged": charged(trained)}

mechanism = TwiceLaplaceMechanism(noise_multiplier=2.0, clipping_norm=3.0)
update = np.zeros(20_000)
sent = mechanism.privatize(update, SecureRandom(insecure_seed=1))
paid = dict(plan_of(5, other_releases={mechanism.event(): 2}).history)[mechanism.event()]
event = event_to_dict(mechanism.event())
found["mechanism"] = {"std": float(sent.std()), "event": event, "planned": paid}

Path("local").mkdir()
clients = numpy_client_app(client_fn(lambda node: FixedClient(0.0)))
plan = plan_of(
    4, rounds=2, client_scheme="rounded", noise_multiplier=2.0, clipping=FixedClipping(norm=0.5)
)
trained = train(Path("local"), plan, answer_with_app(clients, 4), record(w=np.zeros(20_000)))
released = trained.models[-1]["w"] - trained.models[-2]["w"]
found["client scheme"] = {"std": float(released.std()), "charged": charged(trained)}

for name, keys in {
    "client scheme": ["privacy=local", "privacy.scheme=rounded", "selection=public"],
    "task": ["task=stripes", "privacy.noise_multiplier=1"],
    "selection of the app": ["selection=in_turn", "selection.participation_cap=1", "rounds=9"],
    "clipping": ["clipping=power", "clipping.power=-3"],
    "schedule": ["schedule=square", "rounds=3"],
    "promise of the app": ["privacy=rounded", "selection=public"],
    "setting": ["privacy.delta_power=2"],
}.items():
    few = [] if any(key.startswith("rounds=") for key in keys) else ["rounds=2"]
    planned = CliRunner().invoke(app, ["plan", *few, *keys, "--json"])
    assert planned.exit_code == 0, planned.output
    found.setdefault(name, {})["planned"] = json.loads(planned.stdout)

from fl_dp.tasks.datasets import form_of, load_dataset

stripes = load_dataset("stripes")
for name, keys in {
    "server optimizer": ["server_optimizer=half"],
    "tracker": ["tracking=lines"],
}.items():
    found[name] = compose_settings(keys)
step = found.pop("server optimizer").server_optimizer.make(rounds=1)
found["server optimizer"] = [type(step).__name__, step.server_learning_rate]

sys.modules["lines"] = ModuleType("lines")  # the tracker's package
sys.modules["lines"].__spec__ = ModuleSpec("lines", None)
tracker = make_tracker(found.pop("tracker").tracking, Path("."), shared=Path("."))
tracker.started(RunStart(name="wards"))
tracker.released(1, {"epsilon": 1.0})
found["tracker"] = Path("lines.txt").read_text().splitlines()

assert all_keys()["client.patience"].tunable  # which `fl-dp tune` goes by
found["setting"]["help"] = all_keys()["privacy.delta_power"].help

found["task"] |= {"records": len(stripes.train_y), "form": stripes.form == form_of("stripes", None)}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package with all that is added, each by the lines that stand there once."""
    return copy_with(ADDITIONS, tmp_path_factory.mktemp("added"), without=("viewer",))


@pytest.fixture(scope="module")
def found(copy: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run_in(copy, PROGRAM).splitlines()[-1])
    return told


@pytest.mark.parametrize("addition", ADDITIONS, ids=[each.row for each in ADDITIONS])
def test_the_row_names_the_files_and_their_number(addition: Addition, copy: Path) -> None:
    check_row(addition)
    assert all((copy / name).is_file() for name in addition.files)


@pytest.mark.nightly
def test_a_selection_that_was_added_chooses_and_is_charged_by_its_law(
    found: dict[str, Any],
) -> None:
    assert found["selection"]["asked"] == [0, 1, 2, 3, 4, 0]
    event = {"event": "gaussian", "noise_multiplier": 0.5}
    assert found["selection"]["charged"] == [[event, 3]]


@pytest.mark.nightly
def test_a_mechanism_that_was_added_draws_its_law_and_a_plan_charges_its_event(
    found: dict[str, Any],
) -> None:
    assert found["mechanism"]["std"] == pytest.approx(2.0 * 2.0 * 3.0, rel=0.05)
    assert found["mechanism"]["event"] == {"event": "laplace", "noise_multiplier": 2.0}
    assert found["mechanism"]["planned"] == 2


@pytest.mark.nightly
def test_a_client_scheme_that_was_added_trains_is_charged_and_has_its_key(
    found: dict[str, Any],
) -> None:
    scheme = found["client scheme"]
    # The mean of four clients' noise; rounding to quarters adds 0.3 % to its deviation.
    assert scheme["std"] == pytest.approx(2.0 * 0.5 / 4**0.5, rel=0.05)
    assert scheme["charged"] == [[{"event": "gaussian", "noise_multiplier": 2.0}, 2]]
    assert scheme["planned"]["epsilon"]["pld"] <= scheme["planned"]["budget"]


@pytest.mark.nightly
def test_a_task_that_was_added_is_loaded_and_planned_by_its_name(found: dict[str, Any]) -> None:
    assert found["task"]["records"] == 80
    assert found["task"]["form"]
    assert found["task"]["planned"]["epsilon"]["pld"] > 0.0


@pytest.mark.nightly
def test_a_name_of_the_app_that_was_added_is_planned(found: dict[str, Any]) -> None:
    # One round of each client in turn, of 9 planned.
    assert found["selection of the app"]["planned"]["expected_cohort"] == 50.0
    spent = [value for _, value in found["selection of the app"]["planned"]["epsilon_over_rounds"]]
    assert spent[0] == spent[-1]
    assert found["clipping"]["planned"]["clipping_norm"] == 0.125
    low, middle, high = found["schedule"]["planned"]["noise_multipliers"]
    assert low / high == pytest.approx(2.0)
    assert middle / high == pytest.approx(1.6, rel=0.05)  # 0.5 + 0.5 / 4, in one of 16 levels
    assert found["promise of the app"]["planned"]["promise"]["trusted"]


@pytest.mark.nightly
def test_a_setting_that_was_added_is_read_and_explained(found: dict[str, Any]) -> None:
    assert found["setting"]["planned"]["delta"] == pytest.approx(200**-2)
    assert found["setting"]["help"].startswith("A delta that nobody writes")


@pytest.mark.nightly
def test_a_server_optimizer_that_was_added_makes_its_step(found: dict[str, Any]) -> None:
    assert found["server optimizer"] == ["FedAvgM", 0.5]


@pytest.mark.nightly
def test_a_tracker_that_was_added_is_told(found: dict[str, Any]) -> None:
    assert found["tracker"] == ["wards", "1 {'epsilon': 1.0}"]
