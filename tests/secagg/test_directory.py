"""Keys, roster and directory: who is who, and what a node refuses to be told about it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from secure_sums import RUN, Federation

from fl_dp.secagg import Directory, Identity, Refused, Roster, SecureNode, SQLiteStore
from fl_dp.secagg.directory import Entry
from fl_dp.secagg.key_pairs import RunKey
from fl_dp.secagg.roster import Member


def entry(name: str, *, run: int = RUN, epoch: int = 0, identity: Identity | None = None) -> Entry:
    return Entry.make(run, epoch, name, identity or Identity.generate(), RunKey.generate())


class TestIdentity:
    def test_is_made_once_and_read_by_its_owner_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "secagg-identity.pem"
        made = Identity.load_or_create(file)
        assert file.stat().st_mode & 0o777 == 0o600
        assert Identity.load_or_create(file).public == made.public
        assert [each.name for each in tmp_path.iterdir()] == [file.name]
        assert Identity.from_pem(made.to_pem()).public == made.public

    @pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
    def test_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "secagg-identity.pem"
        Identity.load_or_create(file)
        file.chmod(0o640)
        with pytest.raises(ValueError, match="chmod 600"):
            Identity.load_or_create(file)

    def test_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "key.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        for text, message in ((pem, "Ed25519 key, got"), (b"nothing", "in PEM")):
            file.write_bytes(text)
            file.chmod(0o600)
            with pytest.raises(ValueError, match=message):
                Identity.load_or_create(file)


def test_two_places_share_a_root_that_is_theirs_alone() -> None:
    one, other, third = (RunKey.generate() for _ in range(3))
    assert one.root(other.public, 0, 1) == other.root(one.public, 1, 0)
    assert one.root(other.public, 0, 1) != one.root(other.public, 0, 2)
    assert one.root(other.public, 0, 1) != one.root(third.public, 0, 1)
    assert RunKey.from_secret(one.secret).public == one.public


_LOW_ORDER = (
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,  # of order 8
    2**255 - 19,
    2**255 - 18,
)


@pytest.mark.parametrize("point", _LOW_ORDER)
def test_a_point_of_low_order_shares_no_root(point: int) -> None:
    with pytest.raises(ValueError):
        RunKey.generate().root(point.to_bytes(32, "little"), 0, 1)


class TestRoster:
    def write(self, file: Path, **changes: object) -> Path:
        lines = [{"name": "a", "identity": "0a" * 32}, {"name": "b", "identity": "0b" * 32}]
        file.write_text(json.dumps({"federation": "f", "members": lines} | changes))
        return file

    def test_is_read_and_hashed_by_what_it_says(self, tmp_path: Path) -> None:
        roster = Roster.read(self.write(tmp_path / "roster.json"))
        assert roster.allows("a", b"\x0a" * 32) and not roster.allows("a", b"\x0b" * 32)
        assert not roster.chosen
        turned = Roster(federation="f", members=roster.members[::-1])
        assert turned.hash == roster.hash
        named = replace(roster.members[0], committee=True)
        chosen = Roster(federation="f", members=(named, roster.members[1]))
        assert chosen.hash != roster.hash and chosen.chosen == {b"\x0a" * 32}
        assert Roster(federation="g", members=roster.members).hash != roster.hash

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ([{"name": "a", "identity": "0a"}], "32 bytes"),
            ([{"name": "a", "identity": "0a" * 32, "comittee": True}], "keys committee"),
            ([{"name": "a", "identity": "0a" * 32, "committee": 1}], "true or false"),
            ([{"name": "a", "identity": c * 32} for c in ("0a", "0b")], "a stands twice"),
            ([{"name": n, "identity": "0a" * 32} for n in "ab"], "stands twice"),
            ({}, "list"),
        ],
    )
    def test_with_a_mistake_is_refused(self, tmp_path: Path, members: object, message: str) -> None:
        file = self.write(tmp_path / "roster.json", members=members)
        with pytest.raises(ValueError, match=message) as error:
            Roster.read(file)
        assert str(file) in str(error.value)


class TestDirectory:
    def test_survives_its_text(self) -> None:
        first = Directory.first(2**64 - 1, [entry(n, run=2**64 - 1) for n in "abc"])
        grown = first.extended([entry("d", run=2**64 - 1, epoch=1)])
        read = Directory.from_json(grown.to_json())
        read.check()
        assert read == grown and read.hash == grown.hash != first.hash
        assert read.continues(first) and not first.continues(read) and read.continues(read)

    def test_a_place_is_the_last_entry_of_an_identity(self) -> None:
        known = Identity.generate()
        first = Directory.first(RUN, [entry("a", identity=known), entry("b")])
        old = first.index_of[known.public]
        grown = first.extended([entry("a", epoch=1, identity=known)])
        assert grown.index_of[known.public] == 2
        assert grown.current == tuple(sorted({0, 1, 2} - {old}))

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda e: [replace(e[0], signature=bytes(64)), *e[1:]], "not signed"),
            (lambda e: [replace(e[0], name="z"), *e[1:]], "not signed"),
            (lambda e: [*e[:2], entry("z", run=8)], "not signed"),
            (lambda e: [*e, e[0]], "each once"),
            (lambda e: [e[0], replace(e[1], run_key=e[0].run_key), e[2]], "run key stands"),
            (lambda e: [*e, entry("a")], "two identities"),
            (lambda e: [], "no entry"),
        ],
    )
    def test_that_does_not_hold_is_refused(
        self, spoil: Callable[[list[Entry]], list[Entry]], message: str
    ) -> None:
        entries = spoil([entry(name) for name in "abc"])
        with pytest.raises(ValueError, match=message):
            Directory.first(RUN, entries)

    def test_one_identity_under_two_names_is_refused(self) -> None:
        known = Identity.generate()
        first = Directory.first(RUN, [entry("a", identity=known), entry("b")])
        with pytest.raises(ValueError, match="two names"):
            first.extended([entry("c", epoch=1, identity=known)])

    def test_entries_of_a_wrong_epoch_are_refused(self) -> None:
        first = Directory.first(RUN, [entry("a"), entry("b")])
        for epoch in (0, 2):
            with pytest.raises(ValueError, match=r"epoch|order"):
                first.extended([entry("c", epoch=epoch)])


class TestCommittee:
    def test_few_nodes_are_all_members(self) -> None:
        directory = Directory.first(RUN, [entry(str(i)) for i in range(20)])
        assert directory.committee(20) == directory.committee(40) == tuple(range(20))

    def test_few_nodes_have_no_more_members_than_were_asked_for(self) -> None:
        """A visible cohort of 4 among 20 nodes is planned with 4 members."""
        directory = Directory.first(RUN, [entry(str(i)) for i in range(20)])
        assert len(directory.committee(4)) == 4

    def test_beyond_hashes_choose_the_same_everywhere(self) -> None:
        directory = Directory.first(RUN, [entry(str(i)) for i in range(25)])
        chosen = directory.committee(10)
        assert len(chosen) == 10 and list(chosen) == sorted(chosen)
        assert chosen == Directory.from_json(directory.to_json()).committee(10)
        assert set(chosen) < set(directory.committee(12))
        grown = directory.extended([entry("25", epoch=1)])
        assert grown.committee(10) != chosen  # drawn anew: 1 in 5.3 million by chance

    def test_people_may_choose(self) -> None:
        entries = [entry(str(i)) for i in range(25)]
        directory = Directory.first(RUN, entries)
        members = [
            Member(name=each.name, identity=each.identity, committee=i < 9)
            for i, each in enumerate(entries)
        ]
        roster = Roster(federation="f", members=tuple(members))
        names = {directory.entries[place].name for place in directory.committee(10, roster)}
        assert names == {str(i) for i in range(9)}


def code(refused: pytest.ExceptionInfo[Refused]) -> str:
    return refused.value.code


class TestAccept:
    """What a node checks of a directory."""

    def node(self, name: str, roster: Roster | None = None) -> SecureNode:
        return SecureNode(Identity.generate(), SQLiteStore(None), name=name, roster=roster)

    def refuse(self, node: SecureNode, directory: Directory, message: str) -> None:
        with pytest.raises(Refused, match=message) as refused:
            node.accept(directory)
        assert code(refused) == "directory"

    def test_a_directory_without_this_node_is_refused(self) -> None:
        node = self.node("a")
        node.entry(RUN)
        self.refuse(node, Directory.first(RUN, [entry("b"), entry("c")]), "not in the directory")

    def test_a_swapped_key_is_refused(self) -> None:
        node = self.node("a")
        node.entry(RUN)
        own = entry("a", identity=node.identity)  # signed by its owner, but not the key it keeps
        self.refuse(node, Directory.first(RUN, [own, entry("b")]), "another name or key")

    def test_a_key_swapped_by_the_server_is_not_signed(self) -> None:
        node = self.node("a")
        victim = replace(entry("b"), run_key=RunKey.generate().public)
        directory = Directory(
            run=RUN,
            epoch=0,
            roster_hash="",
            entries=tuple(sorted([node.entry(RUN), victim], key=lambda e: e.identity)),
        )
        self.refuse(node, directory, "not signed")

    def test_a_key_without_a_secret_is_refused(self) -> None:
        node = self.node("a")
        identity = Identity.generate()
        zero = RunKey.generate()
        zero.public = bytes(32)  # of order 1: every exchange gives zero
        own = Entry.make(RUN, 0, "b", identity, zero)
        entries = sorted([node.entry(RUN), own], key=lambda each: each.identity)
        directory = Directory(run=RUN, epoch=0, roster_hash="", entries=tuple(entries))
        self.refuse(node, directory, "run key of 'b' is no key")

    def test_without_a_run_key_nothing_is_accepted(self) -> None:
        node = self.node("a")
        own = Entry.make(RUN, 0, "a", node.identity, RunKey.generate())
        self.refuse(node, Directory.first(RUN, [own]), "no key for that run")

    def test_strangers_are_refused_by_a_roster(self) -> None:
        known = Identity.generate()
        plain = self.node("a")
        roster = Roster(
            federation="f",
            members=(
                Member(name="a", identity=plain.identity.public),
                Member(name="b", identity=known.public),
            ),
        )
        node = SecureNode(plain.identity, SQLiteStore(None), name="a", roster=roster)
        mine, theirs = node.entry(RUN), entry("b", identity=known)

        def directory(*entries: Entry, roster_hash: str = roster.hash) -> Directory:
            return Directory.first(RUN, entries, roster_hash=roster_hash)

        self.refuse(node, directory(mine, entry("c")), "'c' is not in the roster")
        self.refuse(node, directory(mine, entry("b")), "'b' is not in the roster with that key")
        self.refuse(node, directory(mine, entry("c", identity=known)), "not in the roster")
        self.refuse(node, directory(mine, theirs, roster_hash=""), "not of this roster")
        self.refuse(node, directory(mine, theirs, roster_hash="0a" * 32), "not of this roster")
        node.accept(directory(mine, theirs))

    def test_without_a_roster_a_name_keeps_its_first_identity(self) -> None:
        node, known = self.node("a"), Identity.generate()
        node.accept(Directory.first(RUN, [node.entry(RUN), entry("b", identity=known)]))
        node.forget(RUN)
        later = [node.entry(8), entry("b", run=8)]
        self.refuse(node, Directory.first(8, later), "'b' had another identity")
        node.accept(Directory.first(8, [later[0], entry("b", run=8, identity=known)]))

    def test_a_later_epoch_has_to_continue_the_one_before(self) -> None:
        node = self.node("a")
        mine = node.entry(RUN)
        first = Directory.first(RUN, [mine, entry("b")])
        node.accept(first)
        other = Directory.first(RUN, [mine, entry("b2"), entry("c")])
        self.refuse(node, other, "does not continue")
        self.refuse(node, other.extended([entry("d", epoch=1)]), "does not continue")
        grown = first.extended([entry("d", epoch=1)])
        node.accept(grown)
        self.refuse(node, first, "does not continue")  # an old epoch
        fork = first.extended([entry("e", epoch=1)])
        self.refuse(node, fork, "does not continue")

    def test_a_node_that_lost_its_store_joins_with_a_new_key(self) -> None:
        house = Federation.of(3)
        lost = house.nodes[1]
        fresh = SecureNode(lost.identity, SQLiteStore(None), name=lost.name)
        grown = house.directory.extended([fresh.entry(RUN, epoch=1)])
        for node in (house.nodes[0], fresh, house.nodes[2]):
            node.accept(grown)
        assert grown.current == (0, 2, 3)
        self.refuse(lost, grown, "another name or key")  # a restored store
