"""For all tests: one thread a process, a cache of their own, and the same draws in every run.

Two workers with two threads each on two processors wait for one another: models as small as a
test's then take seven times the processor's time. Processes that a test starts inherit it.
"""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy or PyTorch is imported, which read it

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixed_draws import FRESH, fix_draws, use_keys
from hypothesis import settings
from owned_clock import OwnedClock
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from fl_dp import files
from fl_dp.accounting.calibration_cache import SWITCH

# The same cases in every run, too, and a busy machine is no failure.
settings.register_profile("fl-dp", derandomize=not FRESH, deadline=None)
settings.load_profile("fl-dp")

_ENOUGH = 4 * 2**30  # bytes: a run of all tests writes a small part of it
_WORKER = "PYTEST_XDIST_WORKER" in os.environ


def _write_to_memory() -> None:
    """Have temporary files in memory, where it has room for them: ledgers wait for the disk."""
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK):
        return
    about = os.statvfs(memory)
    # Some tests start commands that they wrote.
    if about.f_bavail * about.f_frsize >= _ENOUGH and not about.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(memory)
        tempfile.tempdir = None  # asks the environment again


# At import, as plans of module level are calibrated, too. Workers share what the first process
# made, and commands that a test starts share it with them.
if not _WORKER:
    _write_to_memory()
    os.environ[SWITCH] = tempfile.mkdtemp(prefix="fl-dp-calibrations-")


def pytest_unconfigure() -> None:
    if not _WORKER:
        shutil.rmtree(os.environ[SWITCH], ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse versions of pytest and pytest-xdist that don't keep groups together.

    Two simulations at once on two processors wait for each other until their time is up. Files
    with slow tests come first: at the end one process would wait for the other.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    marked = ("slow", "xdist_group")
    slow = {item.path for item in items if any(map(item.get_closest_marker, marked))}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid.rpartition("]")[2]:
            raise pytest.UsageError(
                f"{item.nodeid} stands in no group: this pytest-xdist does not go with pytest "
                f"{pytest.__version__}; install what requirements.lock names"
            )


class ByFile(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests of a file, or of a group, go to one process, which makes once what they share."""

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group


@pytest.hookimpl(optionalhook=True)  # there without `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # as they are collected: one test may take minutes
    return ByFile(config, log)


def pytest_collection_finish() -> None:
    """Spare the collector a million objects of modules and tests that last as long as the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _log_of_flower() -> Iterator[None]:
    """Keep Flower's logger as it is: a benchmark turns it off for its process."""
    flower = logging.getLogger("flwr")
    level, propagate, disabled = flower.level, flower.propagate, flower.disabled
    yield
    flower.setLevel(level)
    flower.propagate, flower.disabled = propagate, disabled


@pytest.fixture(scope="session", autouse=True)
def simulations_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each process a folder of simulated nodes: tests number their runs alike.

    A test with a home of its own has them there.
    """
    own, home, of_a_user = (
        tmp_path_factory.mktemp("simulations"),
        Path.home(),
        files.simulations_folder,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            files, "simulations_folder", lambda: own if Path.home() == home else of_a_user()
        )
        yield


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> OwnedClock:
    """Give each test a clock of its own: no deadline of ours runs by the machine's."""
    owned = OwnedClock()
    owned.put_in_place(monkeypatch)
    return owned


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test draw by its name, whichever tests ran before it in its process."""
    file, _, name = item.location  # a node's id names its group, too
    fix_draws(f"{file}::{name}")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Let a fixture that tests share draw by its own name, whichever test asks first."""
    if fixturedef.scope == "function":
        return (yield)
    which = getattr(request, "param_index", 0)
    before = fix_draws(f"{fixturedef.baseid}::{fixturedef.argname}[{which}]")
    try:
        return (yield)
    finally:
        use_keys(before)
