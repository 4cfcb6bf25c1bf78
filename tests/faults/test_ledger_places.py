"""A ledger that can't be written in the middle of a training, and one that several trainings share.

What a ledger itself does there is in tests/ledger; here a training depends on it.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, postgres_server
from small_trainings import PLAN, ROUNDS, grid, in_a_process
from soundness import require_sound
from stages import Place, train

from fl_dp import PrivacyLedger
from fl_dp.ledger import LedgerUnavailable

__all__ = ["postgres_server"]


def stops_and_goes_on(
    place: Place, break_it: Callable[[], object], mend_it: Callable[[], object], say: str
) -> None:
    """Break the ledger's place while clients of round 2 answer, and mend it after the failure."""
    with pytest.raises(LedgerUnavailable, match=say):
        train(grid(before_round=(2, break_it)), place, rounds=ROUNDS)
    assert [line["round"] for line in place.shown()] == [1]  # the sum of round 2 stayed inside
    mend_it()
    assert require_sound(place) == (2, 1, 1)
    train(grid(), place, rounds=ROUNDS)
    assert require_sound(place) == (3, 2, 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ("-t", "tmpfs", "-o", "size=1m", "fl-dp-test", str(disk))
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root on Linux")
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_tmpfs_that_fills_up_stops_the_training_and_it_goes_on_after(
    place: Place, small_disk: Path
) -> None:
    place.ledger = small_disk / "ledger.db"
    ballast = small_disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                pass

    stops_and_goes_on(place, fill, ballast.unlink, "make room on the disk")


def test_a_disk_that_becomes_read_only_stops_the_training_and_it_goes_on_after(
    place: Place, small_disk: Path
) -> None:
    place.ledger = small_disk / "ledger.db"
    PrivacyLedger.open(place.ledger, PLAN).close()

    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    stops_and_goes_on(place, lambda: remount("ro"), lambda: remount("rw"), "can't be")


def test_a_disk_that_is_full_for_the_server_s_process_stops_the_training(place: Place) -> None:
    """A limit on the size of files plays the full disk where nobody may mount one."""
    PrivacyLedger.open(place.ledger, PLAN).close()
    size = Path(place.ledger).stat().st_size

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    def stop() -> None:
        with pytest.raises(LedgerUnavailable):
            train(grid(before_round=(2, fill)), place, rounds=ROUNDS)

    assert in_a_process(stop) == 0
    assert require_sound(place) == (2, 1, 1)
    train(grid(), place, rounds=ROUNDS)
    assert require_sound(place) == (3, 2, 2)


def test_a_database_that_is_gone_in_the_middle_stops_the_training_and_it_goes_on_after(
    place: Place, postgres_server: PostgresServer
) -> None:
    place.ledger = postgres_server.url(postgres_server.new_database())
    stops_and_goes_on(
        place, postgres_server.vanish, postgres_server.start, "see that the database is up"
    )


def test_trainings_that_share_a_ledger_release_together_no_more_than_it_pays_for(
    place: Place,
) -> None:
    other = Place(place.path / "other")
    other.path.mkdir()
    other.put_plan(PLAN)
    other.ledger = place.ledger
    PrivacyLedger.open(place.ledger, PLAN).close()
    children = []
    for each in (place, other):
        child = os.fork()
        if not child:
            try:
                train(grid(), each, rounds=ROUNDS)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    shown = [line["model"] for each in (place, other) for line in each.shown()]
    assert len(shown) == len(set(shown)) == ROUNDS
    assert require_sound(place).committed == ROUNDS
