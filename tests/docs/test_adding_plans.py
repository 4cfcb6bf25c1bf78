"""A new law of cohorts and a new kind of plan, each added to a copy: they train and are charged.

Each touches the files of its row in docs/architecture.md, and no other.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from additions import Addition, check_row, copy_with, run_in

LAW = Addition(
    row="law of cohorts",
    written={},
    registered={
        "fl_dp/accounting/sampling.py": {
            "@dataclass(frozen=True, kw_only=True)\nclass TruncatedPoissonSampling": '''\
@dataclass(frozen=True, kw_only=True)
class TwiceDrawnSampling(Sampling):
    """A secret coin for each unit, and another one for whom the first lets in.

    Attributes:
        sampling_rate: Probability of either coin, in (0, 1].
    """

    kind: ClassVar[str] = "twice-drawn"
    sampling_rate: float

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a Gaussian that is Poisson-sampled at the square of the rate."""
        return PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, sampling_rate=self.sampling_rate**2
        )

    def draw(self, rng: SecureRandom, places: int, groups: Sequence[int] = ()) -> list[int]:
        """Return the places both of whose coins came up; possibly none."""
        rate = self.sampling_rate
        return heads_of(rng.bernoulli(rate, places) & rng.bernoulli(rate, places))

    def expected_cohort(self, num_units: int) -> float:
        """Return the expected size."""
        return self.sampling_rate**2 * num_units

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        return f"two independent secret coins for each {unit} in each round"


@dataclass(frozen=True, kw_only=True)
class TruncatedPoissonSampling''',
        },
        "fl_dp/plan/central.py": {
            "from fl_dp.option_errors": (
                "from fl_dp.accounting.sampling import TwiceDrawnSampling\nfrom fl_dp.option_errors"
            ),
            "CentralLaw = PoissonSampling": "CentralLaw = TwiceDrawnSampling | PoissonSampling",
        },
    },
)

KIND = Addition(
    row="kind of plan",
    written={
        "fl_dp/plan/everybody.py": '''
"""All clients in every round, and noise at the server."""

from dataclasses import dataclass
from typing import ClassVar

from fl_dp.accounting import PoissonSampling

from .server_noise import ServerNoisePlan


@dataclass(frozen=True, kw_only=True)
class EverybodyPlan(ServerNoisePlan):
    """Fresh noise at the server in each round, in which all clients take part.

    Privacy: as of `CentralPlan`, for one client.
    """

    kind: ClassVar[str] = "everybody"

    @property
    def sampling(self) -> PoissonSampling:
        """All clients: nothing is amplified."""
        return PoissonSampling(sampling_rate=1.0)

    def check(self) -> None:
        """Refuse nothing: these fields always fit each other."""
'''
    },
    registered={
        "fl_dp/plan/as_json.py": {
            "from .grouped import": "from .everybody import EverybodyPlan\nfrom .grouped import",
            "        LocalPlan,\n": "        EverybodyPlan,\n        LocalPlan,\n",
        },
        "strategies/modes/by_plan.py": {
            "from .buffered": "from fl_dp.plan.everybody import EverybodyPlan\n\nfrom .buffered",
            "    CentralPlan: CentralMode,\n": (
                "    CentralPlan: CentralMode,\n    EverybodyPlan: CentralMode,\n"
            ),
        },
    },
)
ADDITIONS = (LAW, KIND)

PROGRAM = """
import json
from pathlib import Path

from kind_trainings import NODES, stated

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting.sampling import TwiceDrawnSampling
from fl_dp.codec import encode
from fl_dp.plan import CentralPlan
from fl_dp.plan.everybody import EverybodyPlan

fields = {
    "budget": PrivacyBudget(epsilon=8.0, delta=1e-3), "rounds": 2, "num_clients": NODES
}
found = {}
for name, draft in {
    "law of cohorts": CentralPlan(**fields, sampling=TwiceDrawnSampling(sampling_rate=0.6)),
    "kind of plan": EverybodyPlan(**fields),
}.items():
    folder = Path(name)
    folder.mkdir()
    statement = stated(draft, folder)
    with PrivacyLedger.read(folder / "ledger.db") as ledger:
        found[name] = {
            "read": ledger.plan == draft.calibrated(),
            "charged": [[encode(event), count] for event, count in ledger.history],
            "epsilon": ledger.epsilon().best,
            "statement": statement,
        }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library with both, each by the lines that stand there once."""
    without = ("app", "commands", "lab", "tasks", "terminal", "viewer")
    return copy_with(ADDITIONS, tmp_path_factory.mktemp("added"), without=without)


@pytest.fixture(scope="module")
def found(copy: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run_in(copy, PROGRAM).splitlines()[-1])
    return told


@pytest.mark.parametrize("addition", ADDITIONS, ids=[addition.row for addition in ADDITIONS])
def test_it_touches_three_files_at_most_which_its_row_names(addition: Addition, copy: Path) -> None:
    check_row(addition)
    assert len(addition.files) <= 3
    assert all((copy / name).is_file() for name in addition.files)


@pytest.mark.nightly
def test_a_law_that_was_added_is_drawn_charged_read_back_and_stated(found: dict[str, Any]) -> None:
    law = found["law of cohorts"]
    [(event, count)] = law["charged"]
    assert (event["kind"], count) == ("poisson-gaussian", 2)
    assert math.isclose(event["sampling_rate"], 0.36)
    assert 7.5 < law["epsilon"] <= 8.0
    assert law["read"]
    assert "two independent secret coins for each client" in law["statement"]


@pytest.mark.nightly
def test_a_kind_that_was_added_trains_and_is_charged_read_back_and_stated(
    found: dict[str, Any],
) -> None:
    kind = found["kind of plan"]
    [(event, count)] = kind["charged"]
    assert (event["kind"], count) == ("gaussian", 2)
    assert 7.5 < kind["epsilon"] <= 8.0
    assert kind["read"]
    assert "every round is charged in full" in kind["statement"]
