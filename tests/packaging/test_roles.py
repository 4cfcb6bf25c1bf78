"""Each role imports what its extras bring: a node's owner installs neither Hydra nor Ray.

What a role imports is read off the source (`source_imports`); what an extra brings is read off
pyproject.toml and the metadata of the installed packages, which are those of requirements.lock.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_imports import ROOT, When, arrows, files, others

from fl_dp.commands.extras import EXTRA_OF, with_its_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

PROMISE = tuple(
    f"fl_dp.{room}"
    for room in (
        "accounting",
        "ledger",
        "mechanisms",
        "plan",
        "protocol",
        "secagg",
        "statement",
        "statistics",
        "updates",
    )
)
BRIDGE = tuple(
    f"fl_dp.clients.{file}"
    for file in (
        "client_noise",
        "compression",
        "deadline",
        "node_policy",
        "numpy_client_app",
        "personal_part",
        "units",
    )
)
"""What wraps a client of one's own, whatever it trains with."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """Somebody who installs fl-dp.

    Attributes:
        rooms: Packages and files that the role imports.
        extras: What its installation names.
        on_demand: Packages that single functions in its reach import besides, each of which ends in
            a line that names the extra, or asks for a choice that another extra is for.
    """

    rooms: tuple[str, ...]
    extras: tuple[str, ...] = ()
    on_demand: frozenset[str] = frozenset()


TRACKERS = frozenset({"mlflow", "prometheus_client", "tensorboard", "wandb"})
OWN_DATA = frozenset({"PIL", "pyarrow"})
MODELS = frozenset({"transformers"})
OF_CUDA = frozenset({"triton"})
"""What comes with PyTorch's build for CUDA; where it is missing, operators do the same."""
ROLES = {
    "a strategy and clients of one's own": Role(
        rooms=(*PROMISE, "fl_dp.strategies", *BRIDGE, "fl_dp.app.local.script_simulation"),
        # Of `app/overrides.py`, whose error alone is imported here, and of trackers that settings
        # can make: `make_tracker` asks for their extra first. Trackers know the names of metrics,
        # which the app's server alone measures: `require_metrics` asks first. Torch's generators
        # are seeded for each unit where torch is installed, whoever uses it.
        on_demand=TRACKERS | {"hydra", "omegaconf", "sklearn", "torch"},
    ),
    "a real node": Role(
        rooms=(
            "fl_dp.app.local.superlink",
            "fl_dp.app.local.local_supernode",
            "fl_dp.clients",
            "fl_dp.client_app",
            "fl_dp.tasks",
        ),
        extras=("torch",),
        on_demand=OWN_DATA | MODELS | TRACKERS | {"datasets", "sklearn"},
    ),
    "an owner's and an auditor's commands": Role(
        rooms=(
            "fl_dp.commands.app",
            "fl_dp.commands.entry",
            "fl_dp.commands.node",
            "fl_dp.commands.shown_ledger",
            "fl_dp.commands.shown_uses",
            "fl_dp.commands.supernode",
            "fl_dp.gate",
        ),
        on_demand=frozenset(EXTRA_OF),
    ),
    "the app's server": Role(
        rooms=("fl_dp.server_app", "fl_dp.app", "fl_dp.commands"),
        extras=("torch", "app"),
        on_demand=OWN_DATA | MODELS | TRACKERS | {"datasets", "matplotlib", "ray"},
    ),
    "the lab": Role(
        rooms=("fl_dp.lab",),
        extras=("torch", "app"),
        on_demand=OWN_DATA | MODELS | TRACKERS | {"datasets", "matplotlib", "ray"},
    ),
    "the viewer": Role(
        rooms=("fl_dp.viewer",),
        extras=("viewer",),
        # The form that starts a training, which needs all of the app.
        on_demand=frozenset(EXTRA_OF) | {"datasets"},
    ),
}


def reach(rooms: Collection[str], latest: When) -> set[str]:
    """Return the files of rooms and all that they import, up to a moment."""
    following: dict[str, list[str]] = {}
    for (module, target), when in arrows().items():
        if when <= latest:
            following.setdefault(module, []).append(target)
    left = [
        module
        for module in files()
        if any(module == room or module.startswith(f"{room}.") for room in rooms)
    ]
    assert left, rooms
    found: set[str] = set()
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += following.get(module, [])
    return found


def of_others(modules: Iterable[str], latest: When) -> dict[str, str]:
    """Return the packages of others that files import, each with one of the files."""
    return {
        name: module
        for module in modules
        for name, when in others()[module].items()
        if when <= latest
    }


@cache
def brought(extras: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the distributions that an installation with some extras brings."""
    found: dict[str, set[str]] = {}  # with the extras of each that were followed
    left = [Requirement(text) for text in PROJECT["dependencies"]]
    left += [Requirement(text) for extra in extras for text in EXTRAS[extra]]
    while left:
        needed = left.pop()
        name = str(canonicalize_name(needed.name))
        new = {"", *needed.extras} - found.get(name, set())
        if not new:
            continue
        found.setdefault(name, set()).update(new)
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # not on this platform
        for each in map(Requirement, requires):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in new):
                left.append(each)
    return frozenset(found)


def not_brought(imports: Iterable[str], extras: tuple[str, ...]) -> set[str]:
    """Return the packages, by the names that are imported, that an installation lacks."""
    return {
        name
        for name in imports
        if not {canonicalize_name(each) for each in _providing().get(name, [name])}
        & brought(extras)
    }


_providing = cache(packages_distributions)


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_what_a_role_imports_its_extras_bring(role: Role) -> None:
    imports = of_others(reach(role.rooms, When.WITH_THE_FILE), When.WITH_THE_FILE)
    assert {"numpy", "typer"} & set(imports)
    missing = not_brought(imports, role.extras)
    assert {name: imports[name] for name in missing} == {}


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_what_a_role_imports_later_its_extras_bring_or_it_asks_for(role: Role) -> None:
    imports = of_others(reach(role.rooms, When.IN_A_CALL), When.IN_A_CALL)
    missing = not_brought(imports, role.extras)
    assert {name: imports[name] for name in missing - role.on_demand - OF_CUDA} == {}


def test_a_missing_package_is_found() -> None:
    assert "flwr" in brought() and "uvicorn" in brought()
    assert not_brought(["hydra", "yaml", "torch"], ()) == {"hydra", "torch"}
    assert not_brought(["hydra", "yaml", "torch"], ("app", "torch")) == set()
    others_bring = {"hydra-core", "matplotlib", "ray", "scikit-learn"}
    assert not others_bring & brought(ROLES["a real node"].extras)
    assert others_bring <= brought(("app", "viewer", "simulation"))


def test_a_command_names_the_extra_of_whatever_it_lacks() -> None:
    imports = of_others(files(), When.IN_A_CALL)
    # Nobody is sent to an extra for `datasets`: `fl-dp data` says what else there is.
    assert not_brought(imports, ()) - {"datasets"} - OF_CUDA <= set(EXTRA_OF)
    assert {name: extra for name, extra in EXTRA_OF.items() if not_brought([name], (extra,))} == {}


def test_the_line_of_a_missing_package_names_its_extra() -> None:
    said = with_its_extra(ModuleNotFoundError("No module named 'hydra'", name="hydra.core"))
    assert said == "this needs hydra: pip install 'fl-dp[app]' brings it"
    of_metadata = PackageNotFoundError("scikit-learn")
    assert "fl-dp[app]" in with_its_extra(of_metadata)
    assert with_its_extra(ModuleNotFoundError("patient 4711")) == "patient 4711"
    assert with_its_extra(ValueError("rounds=0")) == "rounds=0"


def test_the_wheel_is_installed_by_each_role_before_a_release() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(COMMA)", ",")
    tried = set(re.findall(r"\$\(call installed,\w+,(.*)\)$", makefile, re.MULTILINE))
    assert tried == {f"[{','.join(role.extras)}]".replace("[]", "") for role in ROLES.values()}


def test_all_brings_what_each_extra_for_users_does() -> None:
    [everything] = [Requirement(text) for text in EXTRAS["all"]]
    assert everything.extras == set(EXTRAS) - {"all", "dev", "docs", "oracles", "release"}
