"""The file of remembered noise: any doubt about it is forgetting, and never an error."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from remembering_nodes import share_of

from fl_dp.clients import noise_memory
from fl_dp.clients.noise_memory import MEMORY_FILE, carried_noise, forget_noise
from fl_dp.clients.secure_node import secure_node
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.banded_share import BandedShare

COLUMN = (4096, 2867, 2048)
SHARE = share_of(COLUMN, size=30)


def answer(folder: Path, index: int, share: BandedShare = SHARE, run: int = 1) -> np.ndarray:
    with carried_noise(folder, share, run=run) as memory:
        values = [np.zeros(each.size) for each in share.segments]
        return share.encode(values, SecureRandom(), memory, index)


def remembered(folder: Path, share: BandedShare = SHARE, run: int = 1) -> tuple[int, ...]:
    with carried_noise(folder, share, run=run) as memory:
        return memory.remembered


def test_what_was_remembered_is_there_for_the_next_process(tmp_path: Path) -> None:
    sent = [answer(tmp_path, index) for index in range(3)]
    with carried_noise(tmp_path, SHARE, run=1) as memory:
        assert memory.remembered == (1, 2)
        # The last deviation is what was sent, as the values were zero.
        assert (memory.rows[2 % 2] == sent[2]).all() and (memory.rows[1] == sent[1]).all()
    assert (tmp_path / MEMORY_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "other",
    [
        share_of((4096, 2868, 2048), size=30),
        share_of(COLUMN, size=30, noise_scale=41.0),
        share_of(COLUMN, size=31),
        replace(SHARE, rotated=True),
        replace(SHARE, segments=(replace(SHARE.segments[0], cap=2.0**30),)),  # of coarser steps
        replace(SHARE, segments=(replace(SHARE.segments[0], scale=1.5),)),
    ],
)
def test_other_noise_begins_with_nothing(tmp_path: Path, other: BandedShare) -> None:
    answer(tmp_path, 0)
    assert remembered(tmp_path, other) == ()
    assert remembered(tmp_path) == ()


def test_another_run_and_another_start_of_the_machine_begin_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(tmp_path, 0)
    assert remembered(tmp_path, run=2) == ()
    answer(tmp_path, 0, run=2)
    boot = tmp_path / "boot_id"
    boot.write_text("another")
    monkeypatch.setattr(noise_memory, "_BOOT", boot)
    assert remembered(tmp_path, run=2) == ()


def test_a_norm_that_follows_a_quantile_is_the_same_in_steps(tmp_path: Path) -> None:
    answer(tmp_path, 0)
    (updates,) = SHARE.segments
    moved = replace(updates, scale=1.0 / 3.0, clipping_norm=3.0)
    assert remembered(tmp_path, replace(SHARE, segments=(moved,))) == (0,)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes() + b"x"),
        lambda file: file.write_bytes(os.urandom(500)),
        lambda file: file.write_bytes(bytes(len(file.read_bytes()))),
    ],
)
def test_a_file_that_is_no_good_counts_as_nothing(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    answer(tmp_path, 0)
    spoil(tmp_path / MEMORY_FILE)
    assert remembered(tmp_path) == ()
    answer(tmp_path, 1)
    assert remembered(tmp_path) == (1,)


def _killed(folder: Path) -> None:
    with carried_noise(folder, SHARE, run=1) as memory:
        SHARE.encode([np.zeros(30)], SecureRandom(), memory, 1)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_dies_while_it_writes_has_forgotten_all(tmp_path: Path) -> None:
    answer(tmp_path, 0)
    killed = multiprocessing.get_context("fork").Process(target=_killed, args=(tmp_path,))
    killed.start()
    killed.join(30)
    assert killed.exitcode == -signal.SIGKILL
    assert remembered(tmp_path) == ()


def test_an_error_in_the_middle_is_forgetting(tmp_path: Path) -> None:
    answer(tmp_path, 0)
    with pytest.raises(ZeroDivisionError), carried_noise(tmp_path, SHARE, run=1):
        raise ZeroDivisionError
    assert remembered(tmp_path) == ()


def test_an_older_copy_ages_out_and_repeats_no_draw(tmp_path: Path) -> None:
    answer(tmp_path, 0)
    older = (tmp_path / MEMORY_FILE).read_bytes()
    first = answer(tmp_path, 1)
    (tmp_path / MEMORY_FILE).write_bytes(older)
    second = answer(tmp_path, 1)  # marks of indices keep this from happening to a node
    assert (first != second).any()
    (tmp_path / MEMORY_FILE).write_bytes(older)
    answer(tmp_path, 9)
    assert remembered(tmp_path) == (9,)


def test_an_error_that_somebody_keeps_holds_nobody_up(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as kept, carried_noise(tmp_path, SHARE, run=1) as memory:
        raise ZeroDivisionError
    file = os.open(tmp_path / MEMORY_FILE, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who waited for it would wait for good
    os.close(file)
    assert kept.traceback and memory.remembered == ()


def test_a_size_that_the_disk_does_not_hold_takes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = os.statvfs(tmp_path)
    small = os.statvfs_result((*disk[:4], 4_000 // disk.f_frsize, *disk[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: small)
    with pytest.raises(OSError, match="fewer bands"):
        answer(tmp_path, 0)
    assert (tmp_path / MEMORY_FILE).stat().st_size == 0


def _answers(folder: Path, indices: range) -> None:
    for index in indices:
        answer(folder, index)


@pytest.mark.slow
def test_two_processes_at_once_leave_a_memory_that_is_whole(tmp_path: Path) -> None:
    forked = multiprocessing.get_context("fork")
    both = [
        forked.Process(target=_answers, args=(tmp_path, range(first, 60, 2))) for first in (0, 1)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
        assert each.exitcode == 0
    left = remembered(tmp_path)
    assert left and left[-1] == 59 and len(left) <= 2


def test_forgetting_overwrites_and_removes(tmp_path: Path) -> None:
    answer(tmp_path, 0)
    kept = os.open(tmp_path / MEMORY_FILE, os.O_RDONLY)
    forget_noise(tmp_path)
    assert not (tmp_path / MEMORY_FILE).exists()
    content = os.pread(kept, 10_000, 0)
    os.close(kept)
    assert content and not any(content)
    forget_noise(tmp_path)


def test_what_no_run_needs_any_more_is_removed(tmp_path: Path) -> None:
    """The server of a run that is over need not say so."""
    context = Context(
        1, 2, {"ledger-path": str(tmp_path / "ledger.db")}, RecordDict(), run_config={}
    )
    answer(tmp_path, 0)
    with secure_node(context) as node:
        assert not (tmp_path / MEMORY_FILE).exists()
        node.entry(5)
    answer(tmp_path, 0)
    with secure_node(context):
        assert (tmp_path / MEMORY_FILE).exists()
