"""What a peer sends is measured before it is read, and strangers are turned away unread."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from secure_sums import RUN, Federation

from fl_dp.protocol.secure_sum_messages import (
    MemberQuestion,
    content_digest,
    masked_of,
    masked_to_content,
    opened_of,
)
from fl_dp.secagg import Directory, Identity, Refused, Roster, SumTerms
from fl_dp.secagg.client import MaskedMessage
from fl_dp.secagg.directory import MOST_ENTRIES, Entry
from fl_dp.secagg.key_pairs import RunKey
from fl_dp.secagg.roster import Member
from fl_dp.updates import RefusedUpdate


def keys(characters: int) -> str:
    """A JSON object of small keys, of about so many characters."""
    return "{" + ",".join(f'"{number:06x}":0' for number in range(characters // 11)) + "}"


READERS: dict[str, tuple[int, Callable[[str], object]]] = {
    "terms": (600_000, SumTerms.from_json),
    "directory": (7_200_000, Directory.from_json),
    "directory of ten": (120_000, lambda text: Directory.from_json(text, most=10)),
    "entry": (120_000, Entry.from_json),
}


@pytest.mark.parametrize("name", READERS)
def test_a_text_that_is_too_long_is_not_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.5 million keys took 15 seconds and a quarter of a gigabyte."""
    length, read = READERS[name]

    def parsed(*_: Any, **__: Any) -> None:
        raise RuntimeError("it was parsed")

    monkeypatch.setattr("fl_dp.documents.json.loads", parsed)
    with pytest.raises(ValueError, match="characters are more than"):
        read(keys(length))
    with pytest.raises(RuntimeError, match="it was parsed"):  # power: a shorter one is
        read(keys(1000))


def test_the_largest_documents_fit() -> None:
    house = Federation.of(3)
    entry = house.directory.entries[0]
    longest = replace(entry, name="n" * 200)
    assert len(json.dumps(longest.to_dict())) < 700
    terms = house.terms()
    many = tuple(range(MOST_ENTRIES))
    text = terms.to_json().replace('"cohort":[0,1,2]', f'"cohort":{json.dumps(list(many))}')
    assert len(text) < 500_000 - 1000 * 300


def pinned(house: Federation, *strangers: Entry) -> tuple[Directory, Roster]:
    """A directory of the house's nodes and strangers, under the roster of the former."""
    roster = house.nodes[0].roster
    assert roster is not None
    entries = (*house.directory.entries, *strangers)
    inner = tuple(sorted(entries, key=lambda each: each.identity))
    return replace(house.directory, entries=inner), roster


def stranger(number: int) -> Entry:
    return Entry.make(RUN, 0, f"stranger-{number}", Identity.generate(), RunKey.generate())


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose entries' signatures were looked at."""
    looked: list[str] = []
    check = Entry.check

    def counted(self: Entry, run: int) -> None:
        looked.append(self.name)
        check(self, run)

    monkeypatch.setattr(Entry, "check", counted)
    return looked


def test_no_signature_of_a_stranger_is_looked_at(signatures: list[str]) -> None:
    house = Federation.of(3, pinned=True)
    signatures.clear()
    directory, _ = pinned(house, *(stranger(number) for number in range(20)))
    with pytest.raises(Refused, match="is not in the roster") as refused:
        house.nodes[0].accept(directory)
    assert refused.value.code == "directory"
    assert signatures == []


def test_a_name_with_another_identity_is_turned_away_before_its_signature(
    signatures: list[str],
) -> None:
    house = Federation.of(3)  # without a roster a name keeps its first identity
    signatures.clear()
    another = Entry.make(RUN, 0, "node-1", Identity.generate(), RunKey.generate())
    entries = tuple(
        sorted(
            (house.directory.entries[0], another, house.directory.entries[2]),
            key=lambda each: each.identity,
        )
    )
    with pytest.raises(Refused, match="had another identity before"):
        house.nodes[0].accept(replace(house.directory, entries=entries))
    assert signatures == []


def test_a_directory_of_more_entries_than_a_roster_has_keys_for_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = Federation.of(3, pinned=True)
    directory, _ = pinned(house, *(stranger(number) for number in range(30)))
    read: list[Any] = []
    monkeypatch.setattr(Entry, "from_dict", read.append)
    with pytest.raises(Refused, match="entries must be at most 24, got 33"):
        house.nodes[0].read_directory(directory.to_json())
    assert read == []


def test_the_server_knows_a_stranger_before_its_signature(signatures: list[str]) -> None:
    from fl_dp.strategies.secure import SecureSums

    member = Member(name="node-0", identity=Identity.generate().public)
    sums = SecureSums(Roster(federation="tests", members=(member,)))
    problem = sums._problem(replace(stranger(1), epoch=0), 0)
    assert problem is not None and "is not in the roster" in problem
    assert signatures == []


def masked(size: int) -> RecordDict:
    return masked_to_content(MaskedMessage(bytes(size), [b"bundle"], b"commitment"))


def test_masked_values_that_are_too_long_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert masked_of(masked(100), longest=100).masked == bytes(100)

    def read(self: Array) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(Array, "numpy", read)
    with pytest.raises(RefusedUpdate, match="no masked message"):
        masked_of(masked(2000), longest=100)


def test_an_archive_in_place_of_masked_values_is_refused() -> None:
    """NumPy opens a zip file as something that is no array."""
    content, archive = masked(100), io.BytesIO()
    np.savez(archive, a=np.zeros(1, np.uint8))
    [given] = content.array_records["masked"].values()
    given.data = archive.getvalue()
    with pytest.raises(RefusedUpdate):
        masked_of(content, longest=100)


def test_lists_are_no_longer_than_a_sum_has_nodes() -> None:
    too_many = [0] * (MOST_ENTRIES + 1)
    config: dict[str, Any] = {"terms": "", "online": too_many}
    with pytest.raises(ValueError, match="no sum more than 10000"):
        MemberQuestion.from_content(RecordDict({"config": ConfigRecord(config)}))
    with pytest.raises(ValueError, match="no sum more than 10000"):
        opened_of(RecordDict({"config": ConfigRecord({"places": too_many, "shares": []})}))


def test_a_record_of_countless_values_is_not_hashed() -> None:
    many = {f"{number:x}": 0 for number in range(100_001)}
    with pytest.raises(ValueError, match="values in a record are more than"):
        content_digest(RecordDict({"config": ConfigRecord(dict(many)), "model": ArrayRecord({})}))
