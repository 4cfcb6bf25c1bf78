"""Live runs: events of rounds as they come, from where a browser was, until the run has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dashboards import dashboard_of, reader
from written_runs import statement, write_rounds, write_run

from fl_dp.viewer.dashboard.languages import languages
from fl_dp.viewer.dashboard.live import MOST_STREAMS, LiveRuns, mark_of
from fl_dp.viewer.dashboard.shown_runs import seconds_left
from fl_dp.viewer.found_runs import ReadPosition, RunCard, RunsFolder, RunState
from fl_dp.viewer.found_runs.follow import FollowedLog, follow_log
from fl_dp.viewer.found_runs.untrusted import Unreadable

WORDS = languages()["en"]


def events_in(text: str) -> list[tuple[str, Any, str]]:
    """Return kind, data and id of each event of a stream."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return found


def follow(
    live: LiveRuns, name: str, seen: str = "", after: dict[str, Callable[[], None]] | None = None
) -> list[tuple[str, Any, str]]:
    """Read a stream to its end; do something after the first event of a kind."""
    to_do = dict(after or {})
    found: list[tuple[str, Any, str]] = []

    async def read() -> None:
        async for text in live.events(name, seen, WORDS):
            for event in events_in(text):
                found.append(event)
                to_do.pop(event[0], lambda: None)()

    asyncio.run(read())
    return found


def live_of(root: Path) -> LiveRuns:
    return LiveRuns(runs=RunsFolder(root), is_mine=lambda name: False, tick=0.01)


def test_a_live_run_is_followed_to_its_end(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=2, stated=False)

    def finish() -> None:
        write_rounds(path, range(3, 5), rounds=4)
        end_it(path, 4)

    found = follow(live_of(tmp_path), "a", after={"state": finish})
    kinds = [kind for kind, _, _ in found]
    assert kinds[-1] == "end"
    points = [point for kind, data, _ in found if kind == "rounds" for point in data["points"]]
    assert [point[0] for point in points] == [0, 1, 2, 3, 4]
    states = [data["state"] for kind, data, _ in found if kind == "state"]
    assert (states[0], states[-1]) == ("running", "finished")


def test_a_browser_that_connects_again_gets_what_it_has_not_seen(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=6, done=2, stated=False)
    seen = ""

    after = {"rounds": lambda: end_it(path, 2, 6)}
    for kind, _, event_id in follow(live_of(tmp_path), "a", after=after):
        seen = event_id if kind == "rounds" else seen
    (path / "privacy.json").unlink()
    write_rounds(path, range(3, 7), rounds=6)
    end_it(path, 6, 6)
    [(_, data, _)] = [each for each in follow(live_of(tmp_path), "a", seen) if each[0] == "rounds"]
    assert [point[0] for point in data["points"]] == [3, 4, 5, 6]
    assert not data["anew"]


def end_it(path: Path, done: int, rounds: int = 4) -> None:
    """Write the statement that a run ends with."""
    said = statement(rounds=rounds, done=done, epsilon=8.0)
    (path / "privacy.json").write_text(json.dumps(said))


def test_the_log_is_followed_line_by_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=1, stated=False)
    log = path / "run.log"
    log.write_text("one\ntwo <script>\nhalf a li")

    def go_on() -> None:
        with log.open("a") as stream:
            stream.write("ne\nfour\n")

    seen = []
    to_do: list[Callable[[], None]] = [go_on, lambda: end_it(path, 1)]

    async def read() -> None:
        async for text in live_of(tmp_path).events("a", "", WORDS):
            for kind, data, _ in events_in(text):
                if kind == "log":
                    seen.append(data)
                    to_do.pop(0)()

    asyncio.run(read())
    assert seen == [
        {"anew": True, "lines": ["one", "two <script>"]},
        {"anew": False, "lines": ["half a line", "four"]},
    ]


def test_a_log_that_is_long_another_or_a_link_is_followed_with_distrust(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    log = path / "run.log"
    assert follow_log(tmp_path, "a", ReadPosition()) == FollowedLog(
        lines=(), mark=ReadPosition(), replaces=False
    )
    log.write_text("x" * 100_000 + "\n" + "\x1b[2J\n" * 100)
    first = follow_log(tmp_path, "a", ReadPosition())
    assert len(first.lines) == 60
    assert set(first.lines) == {"\ufffd[2J"}
    assert follow_log(tmp_path, "a", first.mark).lines == ()
    with log.open("a") as stream:
        stream.write("line\n" * 10_000)  # more at once than is read
    much = follow_log(tmp_path, "a", first.mark)
    assert much.replaces
    assert len(much.lines) == 60
    log.unlink()
    log.write_text("new\n")
    assert follow_log(tmp_path, "a", much.mark).lines == ("new",)
    assert follow_log(tmp_path, "a", ReadPosition(file=much.mark.file, offset=1 << 40)).replaces
    log.unlink()
    log.symlink_to("/etc/passwd")
    with pytest.raises(Unreadable):
        follow_log(tmp_path, "a", ReadPosition())


def test_a_folder_that_goes_away_ends_the_stream(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=1, stated=False)

    def take_away() -> None:
        path.rename(tmp_path.parent / "b")

    found = follow(live_of(tmp_path), "a", after={"state": take_away})
    assert found[-1][0] == "gone"


def test_a_look_at_nothing_new_reads_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that following a curve costs next to nothing: one look a second, of a few `stat`s."""
    write_run(tmp_path / "a", rounds=1000, done=900, stated=False)
    live = live_of(tmp_path)
    mark = live._look("a", ReadPosition(), WORDS)[0]
    read = []
    monkeypatch.setattr("fl_dp.viewer.found_runs.follow.rounds_of", lambda text: read.append(text))
    monkeypatch.setattr("fl_dp.viewer.found_runs.runs_folder.last_round", read.append)
    with pytest.raises(AttributeError):  # the pretended reader returns nothing
        live._look("a", mark, WORDS)
    assert read == [b""]


@pytest.mark.parametrize("text", ["", "-1.5", "1.-5", "a.b", "1.2.3", "٣.٤", "9" * 5000 + ".1"])
def test_an_event_s_id_is_read_with_distrust(text: str) -> None:
    assert mark_of("17.240") == ReadPosition(17, 240)
    assert mark_of(text) == ReadPosition()


def test_a_stream_of_a_finished_run_is_whole_and_is_never_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    answer = reader(dashboard_of(tmp_path).site()).get("/events/a")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert [kind for kind, _, _ in events_in(answer.text)] == ["rounds", "state", "end"]


def test_streams_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a")
    client = reader(dashboard_of(tmp_path).site())
    monkeypatch.setattr("fl_dp.viewer.dashboard.site.MOST_STREAMS", 0)
    answer = client.get("/events/a")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert MOST_STREAMS > 1


def test_no_event_holds_a_number_that_json_has_not(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").write_text('{"round": 4, "rounds": 4, "test_loss": Infinity}\n')
    found = follow(live_of(tmp_path), "a")
    [[point]] = [data["points"] for kind, data, _ in found if kind == "rounds"]
    assert point[2] is None


def test_time_left_follows_from_the_rounds_so_far() -> None:
    card = RunCard(name="a", kind="training", state=RunState.RUNNING, round=10, rounds=30)
    assert seconds_left(replace(card, started=0.0, changed=50.0)) == pytest.approx(100.0)
