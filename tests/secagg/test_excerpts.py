"""Clients who know a part of a large directory, and a server that lies to them about it.

Each lie runs against what stops it, and where that can be switched off, without it: then it pays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from secure_sums import CONTENT, PURPOSE, RUN, Federation, segments

from fl_dp.secagg import (
    Directory,
    Excerpt,
    Identity,
    OpenSum,
    Refused,
    SecureNode,
    SQLiteStore,
    SumTerms,
)
from fl_dp.secagg import node as nodes
from fl_dp.secagg.client import pair_seed, sign_of
from fl_dp.secagg.directory import Entry
from fl_dp.secagg.evidence import Evidence, summary_of
from fl_dp.secagg.excerpt import Near, directory_from_json, near_of, whole_text
from fl_dp.secagg.key_pairs import RunKey
from fl_dp.secagg.masks import add_mask, unpack

NODES, MEMBERS, SIZE = 30, 10, 20
VALUES = np.arange(NODES * SIZE).reshape(NODES, SIZE)


class Large(Federation):
    """A federation in which the committee alone has the whole directory."""

    excerpt: Excerpt

    @classmethod
    def made(cls, *, pinned: bool = True, **settings: Any) -> Large:
        house = cls.of(NODES, pinned=pinned, **settings)
        assert isinstance(house, Large)
        members = house.directory.committee(MEMBERS)
        vouchers = {each: house.nodes[each].vouch(house.directory) for each in members}
        house.excerpt = Excerpt.of(house.directory, members, vouchers)
        for place in house.others:
            told = directory_from_json(house.excerpt.to_json())
            assert house.nodes[place].accept(told) == house.directory.hash
        return house

    @property
    def others(self) -> list[int]:
        return [place for place in range(NODES) if place not in self.excerpt.entries]

    def large(self, **changes: Any) -> SumTerms:
        usual = {"members": MEMBERS, "degree": 8, "colluding": 1, "threshold": 9, "least": 28}
        return self.terms(**usual | changes)

    def near(self, place: int, terms: SumTerms) -> Near | None:
        if place in self.excerpt.entries:
            return None
        return near_of(self.directory, place, terms.neighbours[place])

    def send(self, place: int, terms: SumTerms, near: Near | None = None) -> Any:
        told = self.near(place, terms) if near is None else near
        node = self.nodes[place]
        part = node.begin(terms.to_json(), content=CONTENT, purpose=PURPOSE, near=told)
        return part.message(VALUES[place])

    def folded(self, terms: SumTerms, *, gone: tuple[int, ...] = (), lies: Any = None) -> OpenSum:
        opening = OpenSum(terms, self.directory)
        for place in set(range(NODES)) - set(gone):
            opening.fold(place, self.send(place, terms, (lies or {}).get(place)))
        return opening

    def ask(self, opening: OpenSum) -> OpenSum:
        text = opening.terms.to_json()
        for member in opening.terms.committee:
            opening.answer(member, self.nodes[member].open(text, *opening.question(member)))
        return opening


def refused(node: SecureNode, told: Directory | Excerpt) -> str:
    with pytest.raises(Refused) as found:
        node.accept(told)
    assert found.value.code == "directory"
    return str(found.value)


def test_clients_with_a_part_and_members_with_the_whole_make_one_sum() -> None:
    house = Large.made()
    terms, gone = house.large(), (house.others[0],)
    opening = house.ask(house.folded(terms, gone=gone))
    assert (opening.release() == VALUES.sum(axis=0) - VALUES[gone[0]]).all()
    assert not any(opening.blame())


def test_the_texts_are_read_as_they_were_written() -> None:
    house = Large.made()
    assert Excerpt.from_json(house.excerpt.to_json()) == house.excerpt
    assert directory_from_json(house.excerpt.to_json()) == house.excerpt
    assert directory_from_json(house.directory.to_json()) == house.directory
    for broken in (
        '{"entries":[[0]]',
        "{}",
        house.excerpt.to_json().replace('"run":7', '"run":-1'),
    ):
        with pytest.raises(ValueError):
            directory_from_json(broken)


class TestNeighbours:
    """The server tells a client other keys of its neighbours than members know."""

    def lied_to(self, house: Large, terms: SumTerms) -> tuple[int, OpenSum, Any, list[RunKey]]:
        """Ask a sum in which one client shares all its pair masks with the server."""
        victim = house.others[3]
        fakes = [RunKey.generate() for _ in terms.neighbours[victim]]
        near = Near(victim, b"".join(each.public for each in fakes))
        opening = OpenSum(terms, house.directory)
        sent = {
            place: house.send(place, terms, near if place == victim else None)
            for place in range(NODES)
        }
        for place, message in sent.items():
            opening.fold(place, message)
        return victim, house.ask(opening), sent[victim], fakes

    def terms_without_members_near(self, house: Large) -> SumTerms:
        """Terms whose ring puts no member beside the victim, as a server can try for."""
        victim = house.others[3]
        for number in range(1, 5000):
            terms = house.large(number=number, degree=4)
            if not set(terms.neighbours[victim]) & set(house.excerpt.entries):
                return terms
        raise AssertionError("none found")

    def test_nobody_opens_the_masks_of_such_a_client(self) -> None:
        house = Large.made()
        terms = self.terms_without_members_near(house)
        victim, opening, _, _ = self.lied_to(house, terms)
        assert victim not in opening._points and len(opening._unreadable[victim]) == MEMBERS
        assert not opening.enough

    def test_without_the_binding_the_server_reads_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nodes, "near_digest", lambda keys: b"")
        house = Large.made()
        terms = self.terms_without_members_near(house)
        victim, opening, sent, fakes = self.lied_to(house, terms)
        assert opening._open_seeds(victim, without=frozenset())
        bare = unpack(sent.masked, terms.bits, terms.size)
        add_mask(bare, opening._seeds[victim][0], sign=-1)
        mine = house.directory.entries[victim].run_key
        for other, fake in zip(terms.neighbours[victim], fakes, strict=True):
            root = fake.root(mine, victim, other)
            seed = pair_seed(root, terms.hash, victim, other)
            add_mask(bare, seed, sign=-sign_of(victim, other))
        assert (bare == VALUES[victim]).all()

    def test_another_s_place_opens_nothing(self) -> None:
        house = Large.made()
        terms, (one, two) = house.large(), house.others[:2]
        other = house.near(two, terms)
        opening = house.folded(terms, gone=(two,), lies={one: other})
        house.ask(opening)
        assert one not in opening._points and not opening.enough

    def test_a_member_s_key_is_the_signed_one(self) -> None:
        house = Large.made()
        for number in range(1, 100):
            terms = house.large(number=number)
            place = house.others[0]
            if near := set(terms.neighbours[place]) & set(house.excerpt.entries):
                break
        told = house.near(place, terms)
        assert told is not None
        at = terms.neighbours[place].index(min(near))
        keys = told.keys[: 32 * at] + RunKey.generate().public + told.keys[32 * at + 32 :]
        with pytest.raises(Refused, match="another one than its entry's"):
            house.send(place, terms, Near(place, keys))

    @pytest.mark.parametrize("keys", [b"", bytes(32 * 8), bytes(31)], ids=len)
    def test_keys_that_are_none_are_refused(self, keys: bytes) -> None:
        house = Large.made()
        with pytest.raises(Refused) as found:
            house.send(house.others[0], house.large(), Near(house.others[0], keys))
        assert found.value.code == "directory"


class TestCommittee:
    """The server shows a client other members, to whom it gives shares of its seeds."""

    def test_an_entry_has_to_be_signed_for_the_run(self) -> None:
        house = Large.made()
        first, *_ = house.excerpt.entries
        forged = replace(house.excerpt.entries[first], run_key=RunKey.generate().public)
        told = replace(house.excerpt, entries={**house.excerpt.entries, first: forged})
        assert "not signed" in refused(house.nodes[house.others[0]], told)

    def test_a_stranger_is_no_member(self) -> None:
        house, stranger = Large.made(), Federation.of(1).nodes[0]
        first, *_ = house.excerpt.entries
        told = replace(house.excerpt, entries={**house.excerpt.entries, first: stranger.entry(RUN)})
        assert "not in the roster" in refused(house.nodes[house.others[0]], told)

    def test_one_node_is_one_member(self) -> None:
        house = Large.made()
        first, second, *_ = house.excerpt.entries
        twice = {**house.excerpt.entries, second: house.excerpt.entries[first]}
        assert "twice" in refused(
            house.nodes[house.others[0]], replace(house.excerpt, entries=twice)
        )

    def test_terms_name_the_members_of_the_excerpt(self) -> None:
        house = Large.made()
        fewer = house.excerpt.entries.keys() - {min(house.excerpt.entries)}
        terms = house.large()
        other = replace(terms, committee=tuple(sorted({*fewer, house.others[5]})))
        with pytest.raises(Refused, match="not the one of this excerpt"):
            house.send(house.others[0], other)

    def test_a_member_does_with_nothing_less_than_the_whole(self) -> None:
        house = Large.made()
        first, *_ = house.excerpt.entries
        assert "needs the whole" in refused(house.nodes[first], house.excerpt)
        place, terms = house.others[0], house.large()
        with pytest.raises(Refused, match="needs the whole"):  # nor does one that is none open
            house.nodes[place].open(terms.to_json(), (), {}, {})


class TestVouchers:
    """Who says that the rest of the directory is of the roster's nodes, each once."""

    def with_vouchers(self, house: Large, count: int) -> Excerpt:
        kept = dict(list(house.excerpt.vouchers.items())[:count])
        return replace(house.excerpt, vouchers=kept)

    def test_as_many_as_may_collude_are_too_few(self) -> None:
        house = Large.made(colluding=2)
        place, terms = house.others[0], house.large()
        house.nodes[place].accept(self.with_vouchers(house, 2))
        with pytest.raises(Refused, match="2 members may collude") as found:
            house.send(place, terms)
        assert found.value.code == "directory"
        house.nodes[place].accept(self.with_vouchers(house, 3))
        house.send(place, terms)

    def test_invented_nodes_get_no_voucher(self) -> None:
        # A cohort of one real client among inventions: whoever knows the roster vouches for none.
        house = Large.made()
        inventions = [
            Entry.make(8, 0, f"invented-{at}", Identity.generate(), RunKey.generate())
            for at in range(40)
        ]
        entries = [*(node.entry(8) for node in house.nodes), *inventions]
        grown = Directory.first(8, entries, roster_hash=house.directory.roster_hash)
        known = {node.identity.public: node for node in house.nodes}
        real = tuple(each for each in grown.current if grown.entries[each].identity in known)
        for member in real:
            assert "not in the roster" in refused(known[grown.entries[member].identity], grown)
        told, victim = (
            Excerpt.of(grown, real[:MEMBERS], {}),
            known[grown.entries[real[-1]].identity],
        )
        assert "no member vouches" in refused(victim, told)

    @pytest.mark.parametrize("what", ["another roster", "another directory", "by another node"])
    def test_a_voucher_is_for_one_directory_and_roster(self, what: str) -> None:
        house = Large.made()
        pinned = house.directory.roster_hash
        about = {"hash": house.directory.hash, "roster": pinned}
        if what == "another roster":
            about["roster"] = ""  # as a member signs whose owner has pinned none
        if what == "another directory":
            about["hash"] = bytes(32)
        said = whole_text(about["hash"], 0, NODES, RUN, about["roster"])  # type: ignore[arg-type]
        by = {place: house.nodes[place].identity for place in house.excerpt.entries}
        if what == "by another node":
            by = dict.fromkeys(by, Identity.generate())
        told = replace(
            house.excerpt, vouchers={place: each.sign(said) for place, each in by.items()}
        )
        assert "no member vouches" in refused(house.nodes[house.others[0]], told)

    def test_the_roster_counts_as_it_is_now(self) -> None:
        house = Large.made()
        node, terms = house.nodes[house.others[0]], house.large()
        assert node.roster is not None
        node.roster = replace(node.roster, members=node.roster.members[:-1])
        with pytest.raises(Refused) as found:
            house.send(house.others[0], terms)
        assert found.value.code == "directory"

    def test_without_a_roster_none_is_asked_for(self) -> None:
        house = Large.made(pinned=False)
        bare = replace(house.excerpt, vouchers={})
        house.nodes[house.others[0]].accept(bare)
        house.send(house.others[0], house.large())


def test_exact_totals_need_the_whole_directory() -> None:
    house = Large.made(exact=frozenset({PURPOSE}))
    terms = house.large(noise_scale=0.0, least=NODES)
    with pytest.raises(Refused, match="needs the whole directory"):
        house.send(house.others[0], terms)


def test_an_older_or_another_directory_of_the_same_epoch_is_refused() -> None:
    house = Large.made()
    told = replace(house.excerpt, hash=bytes(32), vouchers={})
    node = house.nodes[house.others[0]]
    node.roster = None
    assert "does not continue" in refused(node, told)


def test_receipts_are_checked_by_the_members_of_the_excerpt() -> None:
    house = Large.made()
    terms, place = house.large(), house.others[0]
    opening = house.ask(house.folded(terms))
    node, receipt = house.nodes[place], opening.receipt_for(place)
    with pytest.raises(Refused, match="not of this node's message"):
        node.check_receipt(RUN, replace(receipt, path=receipt.path[::-1]).to_json())
    forged = {member: bytes(64) for member in receipt.signatures}
    with pytest.raises(Refused, match="0 members signed"):
        node.check_receipt(RUN, replace(receipt, signatures=forged).to_json())
    node.check_receipt(RUN, receipt.to_json())
    evidence = Evidence.from_json(node.evidence(RUN).to_json())
    assert evidence.findings(node.roster) == () and evidence.summed == (1,)
    assert summary_of(evidence)["nodes"] == NODES
    assert evidence.findings(replace(node.roster, federation="another"))  # type: ignore[type-var]
    other = house.large(number=1, segments=segments(3)).to_json()
    spoilt = replace(evidence, receipted=dict(evidence.receipted) | {"terms": other})
    assert "the last receipt is not of this node's message" in spoilt.findings(node.roster)


class TestEpochs:
    """A server that changes what a directory was, by way of an excerpt in between."""

    def another(self, house: Large) -> Directory:
        """A directory that came about otherwise: one node is in it from the second epoch on."""
        *first, late = house.directory.entries
        without = Directory.first(RUN, first, roster_hash=house.directory.roster_hash)
        node = next(node for node in house.nodes if node.identity.public == late.identity)
        return without.extended([node.entry(RUN, epoch=1)])

    def excerpt_of(self, whole: Directory, house: Large) -> Excerpt:
        """An excerpt for which one member vouches, who colludes."""
        members = whole.committee(MEMBERS)
        node = house.nodes[members[0]]
        said = whole_text(whole.hash, whole.epoch, NODES, RUN, whole.roster_hash)
        return Excerpt.of(whole, members, {members[0]: node.identity.sign(said)})

    def client_of_both(self, house: Large, other: Directory) -> SecureNode:
        """A node that is in neither committee, and in the same place in both directories."""
        members = {*house.excerpt.entries, *other.committee(MEMBERS), NODES - 1}
        return next(node for place, node in enumerate(house.nodes) if place not in members)

    def test_a_whole_directory_is_continued_whatever_came_between(self) -> None:
        house = Large.made()  # every node has had the whole
        other = self.another(house)
        node = self.client_of_both(house, other)
        assert "does not continue" in refused(node, other)
        node.accept(self.excerpt_of(other, house))
        assert "does not continue" in refused(node, other)

    def test_a_whole_directory_is_what_the_excerpt_was_of(self) -> None:
        house = Large.made()
        other = self.another(house)
        node = self.client_of_both(house, other)
        fresh = SecureNode(node.identity, SQLiteStore(None), name=node.name, roster=node.roster)
        fresh.store.put(RUN, "run-key", node._run_key(RUN).secret)
        fresh.accept(house.excerpt)
        assert "does not continue" in refused(fresh, other)
        assert fresh.accept(house.directory) == house.directory.hash
        again = house.nodes[0].entry(RUN, epoch=1)
        with pytest.raises(ValueError, match="twice"):
            house.directory.extended([again])  # its key is the same

    def test_an_honest_epoch_is_taken_by_either_way(self) -> None:
        house = Large.made()
        new = SecureNode(
            house.nodes[0].identity,
            SQLiteStore(None),
            name=house.nodes[0].name,
            roster=house.nodes[0].roster,
        )
        grown = house.directory.extended([new.entry(RUN, epoch=1)])  # it has lost its keys
        node = next(
            house.nodes[place]
            for place in house.others
            if place and place not in grown.committee(MEMBERS)
        )
        told = replace(self.excerpt_of(grown, house), vouchers={})
        members = [each for each in told.entries if grown.entries[each].epoch == 0]
        vouchers = {each: house.nodes[each].vouch(grown) for each in members}
        node.accept(replace(told, vouchers=vouchers))
        assert node.accept(grown) == grown.hash


def test_the_owner_s_check_wants_more_vouchers_than_may_collude() -> None:
    house = Large.made()
    terms, place = house.large(), house.others[0]
    opening = house.ask(house.folded(terms))
    node = house.nodes[place]
    node.check_receipt(RUN, opening.receipt_for(place).to_json())
    few = replace(house.excerpt, vouchers=dict(list(house.excerpt.vouchers.items())[:1]))
    kept = node.evidence(RUN)
    told = dict(kept.receipted) | {"excerpt": few.to_json()}
    spoilt = replace(kept, directory=few.to_json(), receipted=told)
    assert spoilt.findings(node.roster) == ("no more than 1 members vouch for the directory",)
    assert spoilt.findings() == ()  # without a roster none is asked for


@pytest.mark.parametrize("knew", ["excerpt", "whole"])
def test_a_receipt_is_checked_by_the_members_of_its_sum_whoever_they_are_now(knew: str) -> None:
    """A node loses its keys: in the next epoch all members are others."""
    house = Large.made()
    new = house.nodes[0]
    fresh = SecureNode(new.identity, SQLiteStore(None), name=new.name, roster=new.roster)
    grown = house.directory.extended([fresh.entry(RUN, epoch=1)])
    members = grown.committee(MEMBERS)
    place = next(each for each in house.others if each and each not in members)
    node = house.nodes[place]
    if knew == "whole":
        node.accept(house.directory)
    opening = house.ask(house.folded(house.large()))
    vouchers = {
        each: (fresh if each == len(house.nodes) else house.nodes[each]).vouch(grown)
        for each in members
    }
    node.accept(Excerpt.of(grown, members, vouchers))
    receipt = opening.receipt_for(place)
    few = replace(receipt, signatures=dict(list(receipt.signatures.items())[:8]))
    with pytest.raises(Refused, match="8 members signed"):
        node.check_receipt(RUN, few.to_json())
    node.check_receipt(RUN, receipt.to_json())
    assert node.unreceipted(RUN) == 0
    assert node.evidence(RUN).findings(node.roster) == ()


def test_a_directory_that_was_continued_since_is_no_other() -> None:
    house = Large.made()
    place = house.others[-1]
    node, new = house.nodes[place], house.nodes[0]
    node.accept(house.directory)
    opening = house.ask(house.folded(house.large()))
    fresh = SecureNode(new.identity, SQLiteStore(None), name=new.name, roster=new.roster)
    grown = house.directory.extended([fresh.entry(RUN, epoch=1)])
    node.accept(grown)
    node.check_receipt(RUN, opening.receipt_for(place).to_json())
    kept = node.evidence(RUN)
    assert kept.findings(node.roster) == ()
    spoilt = replace(kept, receipted=dict(kept.receipted) | {"epoch": "1"})
    assert spoilt.findings() == ("the terms of the last sum are of another directory",)
