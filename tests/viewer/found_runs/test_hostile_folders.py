"""Folders that somebody wrote to harm who looks at them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from written_runs import write_run

from fl_dp.guarantee import Guarantee
from fl_dp.viewer.found_runs import ReadPosition, RunsFolder, RunState, read_run
from fl_dp.viewer.found_runs.untrusted import Unreadable, parsed_yaml

LOUD = "SECRET"


def test_links_are_never_followed(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside" / "real")
    secret = tmp_path / "secret"
    secret.write_text(f'{{"round": 1, "{LOUD}": 1}}\n')
    root = tmp_path / "runs"
    (root / "sweep").mkdir(parents=True)
    (root / "whole").symlink_to(outside)
    (root / "sweep" / "inner").symlink_to(outside)
    for file in ("config.yaml", "metrics.jsonl", "privacy.json", "run.log", "audit.json"):
        path = write_run(root / f"linked-{file}")
        (path / file).unlink(missing_ok=True)
        (path / file).symlink_to(secret)
    runs = RunsFolder(root)
    names = {card.name for card in runs.listing().cards}
    assert all(name.startswith("linked-") for name in names)
    assert len(names) == 5
    assert any("whole is a link" in problem for problem in runs.listing().problems)
    for name in names:
        assert LOUD not in repr(runs.read(name))
    assert runs.card("linked-config.yaml").state == RunState.BROKEN
    for name in ("whole", "sweep/inner"):
        with pytest.raises(FileNotFoundError):
            runs.read(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a", "a/../../b", "/etc", "a//b", "a/", "a\\b", "a\0b", "a\u202eb", "a/./b"],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "a")
    runs = RunsFolder(tmp_path / "runs")
    for look in (runs.card, runs.read, lambda name: runs.follow(name, ReadPosition())):
        with pytest.raises(Unreadable):
            look(name)


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    for file in ("config.yaml", "metrics.jsonl", "privacy.json"):
        (path / file).unlink()
        os.mkfifo(path / file)
    found = read_run(path)
    assert found.card.state == RunState.BROKEN
    assert found.rounds == ()
    assert "metrics.jsonl is no plain file" in found.problems


def test_a_file_of_a_gigabyte_is_read_at_its_end(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=3)
    lines = (path / "metrics.jsonl").read_bytes()
    with (path / "metrics.jsonl").open("wb") as stream:
        stream.truncate(1 << 30)  # sparse: nothing but zeros
        stream.seek(0, 2)
        stream.write(b"\n" + lines)
    found = read_run(path)
    assert [each.round for each in found.rounds] == [0, 1, 2, 3]
    [problem] = found.problems  # the line that was cut is none
    assert "only its last 33,554,432 are shown" in problem
    assert found.card.round == 3


@pytest.mark.parametrize("file", ["config.yaml", "privacy.json", "audit.json"])
def test_other_files_that_are_too_large_are_not_read(tmp_path: Path, file: str) -> None:
    path = write_run(tmp_path / "a")
    with (path / file).open("wb") as stream:
        stream.truncate(1 << 30)
    assert any(f"{file} is larger than" in problem for problem in read_run(path).problems)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[" * 100_000, b"null", b"[]", b'"x"', b"\xff\xfe", b"1" * 5000, b"\0" * 99],
    ids=["empty", "half", "deep", "null", "list", "text", "no utf-8", "digits", "zeros"],
)
def test_files_that_are_none_are_said_and_left_out(tmp_path: Path, text: bytes) -> None:
    path = write_run(tmp_path / "a")
    for file in ("config.yaml", "metrics.jsonl", "privacy.json", "audit.json"):
        (path / file).write_bytes(text + b"\n")
    (path.parent / "sweep.json").write_bytes(text)
    found = read_run(path)
    assert found.card.state == RunState.BROKEN
    assert (found.rounds, found.settings, found.statement) == ((), {}, None)
    assert any("config.yaml" in problem for problem in found.problems)
    assert any("privacy.json" in problem for problem in found.problems)


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    line = {"round": 5, "test_accuracy": float("nan"), "epsilon": float("inf"), "test_loss": "<b>"}
    bad = ['{"round": 6, "epsilon": 1e999, "bytes_up": true, "clients": [1]}', '{"round": -1}']
    bad += ['{"round": 1.5}', '{"round": true}', f'{{"round": {10**40}}}', "7", "[]"]
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write("\n".join([json.dumps(line), *bad]) + "\n")
    found = read_run(path)
    assert [each.round for each in found.rounds] == [0, 1, 2, 3, 4, 5, 6]
    for each in found.rounds[-2:]:
        assert {each.test_accuracy, each.epsilon, each.test_loss, each.bytes_up} == {None}
    assert any("6 lines that tell no round" in problem for problem in found.problems)
    (path / "privacy.json").write_text(
        '{"epsilon": {"pld": Infinity}, "quoted": "pld", "delta": NaN, "unit": 3, "budget": []}'
    )
    card = read_run(path).card
    assert card.promise == Guarantee(delta=None, unit=None, neighbours=None, against=None)


def test_yaml_may_not_grow() -> None:
    laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for text in (laughs, "[" * 5000, "a: !!python/object/apply:os.system ['true']"):
        with pytest.raises(Unreadable):
            parsed_yaml(text.encode(), "config.yaml")


def test_text_is_on_one_line_and_shown_as_it_is(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    hostile = "one client\nb\u202e\x1b[31m"
    parts = dict.fromkeys(("unit", "neighboring_relation", "against"), hostile)
    (path / "privacy.json").write_text(
        json.dumps(parts | {"quoted": "pld", "epsilon": {"pld": 1.0}})
    )
    (path / "run.log").write_bytes(b"\x1b]0;owned\x07 line\nthe run failed\xff\n")
    found = read_run(path)
    assert found.card.promise is not None
    assert found.card.terms.isprintable()
    assert all(line.isprintable() for line in found.log)
    assert found.failed
