"""A server that lies: about who replied, about the message, about the terms.

Each attack runs against the rule that stops it and, where a rule can be switched off, without it:
then it succeeds, so the test can fail.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from secure_sums import CONTENT, PURPOSE, RUN, Federation, ask, bundles_for, segments, send

from fl_dp.accounting import SharedNoise
from fl_dp.mechanisms import Segment
from fl_dp.secagg import (
    Directory,
    Identity,
    OpenSum,
    Refused,
    Roster,
    SecureNode,
    SecureSumFailed,
    SQLiteStore,
    SumTerms,
)
from fl_dp.secagg.client import commitment, pair_seed, sign_of
from fl_dp.secagg.key_pairs import RunKey
from fl_dp.secagg.masks import add_mask, unpack
from fl_dp.secagg.member import lost_neighbours, needed_of
from fl_dp.secagg.roster import Member
from fl_dp.secagg.shares import combine
from fl_dp.secagg.texts import digest

ZEROS = np.zeros((40, 20), np.int64)


@pytest.fixture
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch R2 off, and R1 with it: in the terms, and at nodes."""
    monkeypatch.setattr(SharedNoise, "__post_init__", lambda _: None)
    monkeypatch.setattr(SecureNode, "_noise", lambda _, terms: terms.noise)


def naked(victim: int, n: int) -> set[tuple[int, int | None]]:
    """Return what lays a client bare: its own mask, and all that it shares."""
    return {(victim, None), *((victim, other) for other in range(n) if other != victim)}


def three_views(member: int, online: frozenset[int]) -> set[int]:
    """Tell of client 8, and of another third of the rest each time."""
    return {8} | {place for place in online if place % 3 == member % 3}


class TestViewsThatDiffer:
    """A lying server tells members different repliers; nine nodes, all in the committee."""

    def test_three_views_lay_one_client_bare_without_rule_r2(self, no_rules: None) -> None:
        house = Federation.of(9)
        terms = house.terms(threshold=6, least=3)
        assert terms.noise.guaranteed <= 1  # what R2 sees
        asked = ask(house, terms, ZEROS, tell=three_views)
        assert len(asked.answers) == 9 and naked(8, 9) <= asked.opened()

    def test_its_seeds_are_really_there(self, no_rules: None) -> None:
        # From nothing but what members answered: the victim's own values come out.
        house = Federation.of(9)
        terms = house.terms(threshold=6, least=3)
        values = np.arange(180).reshape(9, 20)
        sent = [send(node, terms, each) for node, each in zip(house.nodes, values, strict=True)]
        opening = OpenSum(terms)
        for place, message in enumerate(sent):
            opening.fold(place, message)
        seeds: dict[int, dict[int, bytes]] = {}  # shares of the victim's seeds, by index and x
        for member, node in enumerate(house.nodes):
            labels = opening.question(member).labels
            told = sorted(three_views(member, frozenset(range(9))))
            bundles = bundles_for(opening, member, told)
            seen = {place: labels[place] for place in told}
            share = node.open(terms.to_json(), told, seen, bundles).shares[8]
            wanted = [0, *(at for at, _ in lost_neighbours(terms, 8, frozenset(told)))]
            for slot, at in enumerate(wanted):
                seeds.setdefault(at, {})[member + 1] = share[16 * slot : 16 * slot + 16]
        bare = unpack(sent[8].masked, terms.bits, terms.size)
        for at, shares in seeds.items():
            seed = combine(dict(list(shares.items())[: terms.threshold]))
            other = 9 if at == 0 else terms.neighbours[8][at - 1]
            add_mask(bare, seed, sign=-sign_of(8, other))
        assert (bare == values[8]).all()

    def test_rule_r2_refuses_such_terms(self) -> None:
        house = Federation.of(9)
        with pytest.raises(ValueError, match="lies to members could open a sum of 0"):
            house.terms(threshold=6, least=3)

    def test_rule_r2_is_the_nodes_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        house = Federation.of(9)
        with monkeypatch.context() as patch:  # a server whose terms come without rules
            patch.setattr(SharedNoise, "__post_init__", lambda _: None)
            terms = house.terms(threshold=6, least=3)
            text = terms.to_json()
        with pytest.raises(Refused, match="could open a sum of 0") as refused:
            house.nodes[0].begin(text, content=CONTENT, purpose=PURPOSE)
        assert refused.value.code == "terms"
        with pytest.raises(Refused, match="could open a sum of 0"):
            house.nodes[0].open(text, (), {}, {})

    def test_the_cross_check_stops_three_views(self) -> None:
        house = Federation.of(9)
        terms = house.terms(threshold=6, least=3, cross_check=True)
        asked = ask(house, terms, ZEROS, tell=three_views)
        assert not asked.answers
        assert {refused.code for refused in asked.refusals.values()} == {"quorum"}

    def test_two_views_never_open_both_masks_of_one_client(self) -> None:
        house = Federation.of(9)
        terms = house.terms(threshold=8, least=8)
        for lied_to in range(10):

            def tale(member: int, online: frozenset[int], told: int = lied_to) -> frozenset[int]:
                return online - {8} if member < told else online

            found = ask(house, replace(terms, number=lied_to + 1), ZEROS, tell=tale).opened()
            assert ((8, None) in found) + any(other == 8 for _, other in found) <= 1

    def test_without_rule_r1_two_views_do(self, no_rules: None) -> None:
        house = Federation.of(9)
        terms = house.terms(threshold=4, least=8)
        asked = ask(house, terms, ZEROS, tell=lambda member, on: on - {8} if member < 4 else on)
        found = asked.opened()
        assert (8, None) in found and any(other == 8 for _, other in found)

    @pytest.mark.slow
    @pytest.mark.parametrize("colluding", [0, 1])
    def test_random_views_open_no_sum_below_the_guaranteed(self, colluding: int) -> None:
        rng = np.random.default_rng(colluding)
        tight = 0
        for _ in range(1500):
            n, members = int(rng.integers(4, 10)), int(rng.integers(4, 9))
            threshold = int(rng.integers((members + colluding) // 2 + 1, members + 1))
            try:
                noise = SharedNoise(
                    cohort=n,
                    least=int(rng.integers(2, n + 1)),
                    colluding=colluding,
                    committee=members,
                    threshold=threshold,
                )
            except ValueError:
                continue
            smallest = smallest_opened(noise, rng)
            if smallest is not None:
                assert smallest + colluding >= noise.guaranteed
                tight += smallest + colluding == noise.guaranteed
        assert tight > 20  # power: a rule that asked for one client more would fail


def smallest_opened(noise: SharedNoise, rng: np.random.Generator) -> int | None:
    """Return the fewest honest clients whose sum some server opens that lies well; None: no sum.

    All are neighbours. It wants the sum of some clients, tells each honest member of all of those
    and of all who collude, and of others in turn, so that each is often enough said to be gone.
    """
    honest = noise.cohort - noise.colluding
    wanted = int(rng.integers(1, honest + 1))
    others = rng.permutation(np.arange(wanted, honest))
    fill = max(0, noise.least - noise.colluding - wanted)
    if fill > others.size:
        return None
    told = np.zeros((noise.honest_members, honest), bool)
    told[:, :wanted] = True
    for member, row in enumerate(told):
        row[np.take(others, range(member * fill, (member + 1) * fill), mode="wrap")] = True
    needed = noise.threshold - noise.colluding_members  # honest members who give a secret away
    own = told.sum(0) >= needed
    pair = (told[:, :, None] & ~told[:, None, :]).sum(0) >= needed
    closed = ~(pair | pair.T) & ~np.eye(honest, dtype=bool)
    # Who shares a closed mask can be summed only together, and only if all own masks are open.
    count, group = connected_components(csr_array(closed), directed=False)
    sizes = [int((group == each).sum()) for each in range(count) if own[group == each].all()]
    return min(sizes, default=None)


class TestRepliers:
    """What a member refuses to open, whatever the others do."""

    house = Federation.of(9)
    _numbers = iter(range(1, 1000))

    def refusal(self, online: tuple[int, ...], **changes: Any) -> str:
        terms = self.house.terms(number=next(self._numbers), **{"threshold": 8} | changes)
        labels = {place: bytes(32) for place in online}
        with pytest.raises(Refused) as refused:
            self.house.nodes[0].open(terms.to_json(), online, labels, {})
        assert self.house.nodes[0].store.marked(RUN, "open", terms.number) is None
        return refused.value.code

    def test_too_few(self) -> None:
        assert self.refusal(tuple(range(8)), least=9) == "view"

    def test_strangers(self) -> None:
        assert self.refusal((*range(8), 20)) == "view"
        assert self.refusal((1, 2, 3, 4, 5, 6, 7, 8), cohort=tuple(range(8)), least=8) == "view"

    def test_doubled_or_out_of_order(self) -> None:
        assert self.refusal((0, *range(9))) == "view"
        assert self.refusal((1, 0, *range(2, 9))) == "view"

    def test_a_quorum_of_one(self) -> None:
        terms = self.house.terms(number=next(self._numbers), threshold=8, cross_check=True)
        online, labels = tuple(range(9)), {place: bytes(32) for place in range(9)}
        text, nodes = terms.to_json(), self.house.nodes
        signature = nodes[1].view(text, online, labels)
        forged = dict.fromkeys(range(9), signature)  # one signature is one member's
        with pytest.raises(Refused, match="1 members signed this view, 8 are needed") as refused:
            nodes[0].open(text, online, labels, {}, forged)
        assert refused.value.code == "quorum"

    def test_a_thin_ring(self) -> None:
        house = Federation.of(24)
        terms = house.terms(degree=4, threshold=23, least=14)
        gone = set(terms.neighbours[0])
        asked = ask(house, terms, ZEROS, tell=lambda member, online: online - gone)
        assert not asked.answers
        assert {refused.code for refused in asked.refusals.values()} == {"thin"}

    def test_the_same_number_twice(self) -> None:
        house = Federation.of(9)
        terms = house.terms(threshold=8)
        asked = ask(house, terms, ZEROS)
        again = asked.opening.question(0)
        for other in (terms, replace(terms, content="0c" * 32)):
            with pytest.raises(Refused) as refused:
                house.nodes[0].open(other.to_json(), *again)
            assert refused.value.code in ("stale", "terms")
            with pytest.raises(Refused, match="is over") as refused:
                send(house.nodes[0], other, ZEROS[0])
            assert refused.value.code == "stale"

    def test_a_second_view_of_a_number(self) -> None:
        house = Federation.of(9)
        terms = house.terms(threshold=8, least=8, cross_check=True)
        labels = {place: bytes(32) for place in range(9)}
        node, text = house.nodes[0], terms.to_json()
        first = node.view(text, range(9), labels)
        assert node.view(text, range(9), labels) == first  # a message that came twice
        with pytest.raises(Refused, match="another view") as refused:
            node.view(text, range(8), {place: bytes(32) for place in range(8)})
        assert refused.value.code == "view"


class TestAnotherStory:
    """One client is told something else than the rest: its values stay hidden."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"content": "0c" * 32},  # another model, learning rate or anything else it was sent
            {"cohort": (0, 2, 3, 4, 5, 6, 7, 8), "least": 8},
            {"number": 2},
            {"rotated": True},
            {"segments": (*segments(19), Segment("count", 1, 1.0, 1.0, 1.0))},
        ],
    )
    def test_nobody_opens_its_message(self, changes: dict[str, Any]) -> None:
        house = Federation.of(9)
        terms = house.terms(threshold=8)
        other = replace(terms, **changes)
        opening = OpenSum(terms)
        for place, node in enumerate(house.nodes):
            message = send(node, other if place == 8 else terms, ZEROS[0])
            if not message.fits(terms, place):  # one neighbour less: the server makes it fit
                return
            opening.fold(place, message)
        for member in range(8):
            opened = house.nodes[member].open(terms.to_json(), *opening.question(member))
            assert opened.unreadable == (8,)
            opening.answer(member, opened)
        assert not opening.enough
        with pytest.raises(SecureSumFailed, match="the seeds of 1 clients"):
            opening.release()
        if "number" not in changes:
            with pytest.raises(Refused, match="under other terms"):
                house.nodes[8].open(terms.to_json(), *opening.question(8))

    def test_its_masks_stay_in_a_sum_that_leaves_it_out(self) -> None:
        # The server passes the odd client off as gone: the others' masks with it do open, and its
        # own message, under other terms, is covered by masks of which nobody has a share.
        house = Federation.of(9)
        terms = house.terms(threshold=8, least=8)
        odd = send(house.nodes[8], replace(terms, content="0c" * 32), ZEROS[0])
        asked = ask(house, terms, ZEROS, gone=(8,), silent=(8,))
        assert (asked.release() == 0).all()
        covered = unpack(odd.masked, 16, 20)
        for place in range(8):  # what was opened is of other seeds
            add_mask(covered, asked.opening._seeds[place][1], sign=-sign_of(8, place))
        assert covered.any()

    def test_a_restored_store_sends_what_nobody_opens(self) -> None:
        # Marks are gone, the key is not: the node answers a number twice. Members open one label.
        house = Federation.of(9)
        terms = house.terms(threshold=8)
        node = house.nodes[8]
        backup = SQLiteStore(None)
        node.store._database.backup(backup._database)
        asked = ask(house, terms, ZEROS, silent=(0,))
        restored = SecureNode(node.identity, backup, name=node.name)
        again = send(restored, terms, ZEROS[0])
        online, labels, bundles = asked.opening.question(0)
        labels |= {8: again.label}
        opened = house.nodes[0].open(terms.to_json(), online, labels, bundles)
        assert opened.unreadable == (8,)  # a bundle of the first message, a label of the second
        bundles = {8: again.bundles[1]}
        with pytest.raises(Refused) as refused:
            house.nodes[1].open(terms.to_json(), online, labels, bundles)
        assert refused.value.code == "stale"


class TestPieces:
    """A server that hands members other parts of a client's bundles than their view opens."""

    GONE = 4  # whose masks with everybody are opened

    def asked(self) -> tuple[Federation, OpenSum]:
        house = Federation.of(9)
        terms = house.terms(threshold=8, least=8)
        opening = OpenSum(terms, house.directory)
        for place in set(range(9)) - {self.GONE}:
            opening.fold(place, send(house.nodes[place], terms, np.zeros(20)))
        return house, opening

    def test_a_member_gets_of_a_client_what_it_opens_and_no_more(self) -> None:
        _, opening = self.asked()
        question = opening.question(0)
        assert {len(each) for each in question.bundles.values()} == {8 + 2 * 32}
        assert len(opening._heads[8].bundles[0]) == 8 + 9 * 32

    @pytest.mark.parametrize(
        "lie",
        [
            lambda whole: needed_of(whole, (0, 1)),  # the mask with a client who replied
            lambda whole: needed_of(whole, (1, 5)),  # that one in the self seed's place
            lambda whole: needed_of(whole, (0, 1, 5)),
            lambda whole: whole,
            lambda whole: bytes(8) + needed_of(whole, (0, 5))[8:],
            lambda whole: needed_of(whole, (0, 5))[:-1],
            lambda whole: b"",
        ],
    )
    def test_other_parts_are_not_read(self, lie: Any) -> None:
        house, opening = self.asked()
        online, labels, bundles = opening.question(0)
        whole = opening._heads[8].bundles[0]
        assert bundles[8] == needed_of(whole, (0, 5))  # its own seed, and that with the one gone
        text = opening.terms.to_json()
        opened = house.nodes[0].open(text, online, labels, bundles | {8: lie(whole)})
        assert opened.unreadable == (8,) and 8 not in opened.shares

    def test_parts_of_another_sum_client_or_member_are_not_read(self) -> None:
        house, opening = self.asked()
        online, labels, bundles = opening.question(0)
        other = send(house.nodes[8], house.terms(number=2, threshold=8, least=8), np.zeros(20))
        lies = {
            8: needed_of(other.bundles[0], (0, 5)),
            7: bundles[6],
            6: needed_of(opening._heads[6].bundles[1], (0, 5)),
        }
        opened = house.nodes[0].open(opening.terms.to_json(), online, labels, bundles | lies)
        assert opened.unreadable == (6, 7, 8)

    def test_two_places_commit_to_one_seed_differently(self) -> None:
        # A guess that could be compared with every commitment there is would be a cheap one.
        house = Federation.of(2)
        terms = house.terms(threshold=2, least=2)
        sent = [send(node, terms, np.zeros(20)) for node in house.nodes]
        root = house.nodes[0]._run_key(RUN).root(house.directory.entries[1].run_key, 0, 1)
        seed = pair_seed(root, terms.hash, 0, 1)
        assert [each.commitments[16:] for each in sent] == [
            commitment(seed, terms, place) for place in (0, 1)
        ]
        assert sent[0].commitments[16:] != sent[1].commitments[16:]


class TestCuriousServer:
    """Of three clients one colludes, so that one pair's mask hides the values of another."""

    BITS = 12  # that the server does not know of a weak secret, and searches

    def weak(self, guess: int) -> bytes:
        return digest("weak", guess)

    def read_by_search(self) -> np.ndarray | None:
        """Return what is read of client 0 by trying every weak secret of it and client 1."""
        house = Federation.of(3)
        terms, values = house.terms(), np.arange(60).reshape(3, 20)
        sent = [send(node, terms, each) for node, each in zip(house.nodes, values, strict=True)]
        opening = OpenSum(terms)
        for place, message in enumerate(sent):
            opening.fold(place, message)
        for place, node in enumerate(house.nodes):
            opening.answer(place, node.open(terms.to_json(), *opening.question(place)))
        assert opening.enough and (opening.release() == values.sum(0)).all()
        bare = unpack(sent[0].masked, terms.bits, terms.size)
        add_mask(bare, opening._seeds[0][0], sign=-1)  # as in every sum
        shared = house.nodes[2]._run_key(RUN).root(house.directory.entries[0].run_key, 0, 2)
        add_mask(bare, pair_seed(shared, terms.hash, 0, 2), sign=-1)  # from the one who colludes
        for guess in range(1 << self.BITS):
            tried = bare.copy()
            add_mask(tried, pair_seed(self.weak(guess), terms.hash, 0, 1), sign=-1)
            if (tried < 1 << 10).all():  # as updates are: 20 values by chance with 2^-120
                assert (tried == values[0]).all()
                return tried
        return None

    def test_reads_nothing(self) -> None:
        assert self.read_by_search() is None

    def test_reads_an_update_whose_mask_is_of_few_bits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Power: as of Flower's generator, whose seeds vary in 28 bits (benchmarks/stock_flower.py).
        root = RunKey.root

        def few_bits(key: RunKey, *told: Any, **more: Any) -> bytes:
            strong = int.from_bytes(root(key, *told, **more))
            return self.weak(strong & ((1 << self.BITS) - 1))

        monkeypatch.setattr(RunKey, "root", few_bits)
        assert self.read_by_search() is not None


class TestBegin:
    """What a client checks before it takes part."""

    def refusal(self, node: SecureNode, terms: SumTerms | str, **other: str) -> tuple[str, str]:
        text = terms if isinstance(terms, str) else terms.to_json()
        with pytest.raises(Refused) as refused:
            asked = {"content": CONTENT, "purpose": PURPOSE} | other
            node.begin(text, content=asked["content"], purpose=asked["purpose"])
        assert node.store.last(RUN, "sum") == 0
        return refused.value.code, str(refused.value)

    @pytest.fixture
    def house(self) -> Federation:
        return Federation.of(5)

    def test_another_message(self, house: Federation) -> None:
        found = self.refusal(house.nodes[0], house.terms(), content="0c" * 32)
        assert found == ("terms", "the message is not the one of its terms")

    def test_another_purpose(self, house: Federation) -> None:
        code, text = self.refusal(house.nodes[0], house.terms(), purpose="evaluate")
        assert code == "terms" and "for 'train', not 'evaluate'" in text

    def test_another_directory_or_run(self, house: Federation) -> None:
        other = house.terms(directory="0c" * 32)
        assert self.refusal(house.nodes[0], other)[0] == "directory"
        assert self.refusal(house.nodes[0], house.terms(run=8))[0] == "directory"

    def test_a_cohort_without_it(self, house: Federation) -> None:
        terms = house.terms(cohort=(1, 2, 3, 4), least=4)
        assert self.refusal(house.nodes[0], terms) == (
            "terms",
            "this node is not in the cohort",
        )

    def test_a_place_whose_keys_were_lost(self, house: Federation) -> None:
        lost = house.nodes[4]
        fresh = SecureNode(lost.identity, SQLiteStore(None), name=lost.name)
        grown = house.directory.extended([fresh.entry(RUN, epoch=1)])
        house.nodes[0].accept(grown)
        old = house.terms(directory=grown.hash.hex())
        assert "entry is their last" in self.refusal(house.nodes[0], old)[1]

    def test_another_committee(self, house: Federation) -> None:
        chosen = house.directory.committee(4)  # by hashes of fresh keys: any four of five
        other = next(each for each in combinations(range(5), 4) if each != chosen)
        terms = house.terms(committee=other, threshold=4)
        code, text = self.refusal(house.nodes[0], terms)
        assert code == "terms" and "committee" in text

    def test_smaller_sums_than_its_owner_allows(self) -> None:
        house = Federation.of(5, least_sum=5)
        code, text = self.refusal(house.nodes[0], house.terms(colluding=1))
        assert code == "policy" and "wants 5" in text
        send(house.nodes[0], house.terms(), ZEROS[0])

    def test_the_owners_own_assumption_counts_if_it_is_larger(self) -> None:
        house = Federation.of(10, colluding=3, least_sum=7)
        code, text = self.refusal(house.nodes[0], house.terms())
        assert code == "policy" and "of 6 clients that do not collude" in text
        send(house.nodes[0], house.terms(least=10), ZEROS[0])

    def test_a_small_cohort_does_not_make_fewer_collude(self) -> None:
        # All five who may collude among 30 fit into a cohort of six, where one would be usual.
        house = Federation.of(30, pinned=True, colluding=None)
        small: dict[str, Any] = {"members": 7, "threshold": 7, "colluding": 1}
        code, text = self.refusal(
            house.nodes[0], house.terms(cohort=tuple(range(6)), least=6, **small)
        )
        assert code == "policy" and "with 5 nodes that may collude" in text
        terms = house.terms(cohort=tuple(range(7)), least=7, **small)
        assert house.nodes[0].assumed_colluding(terms) == 5
        alone = Federation.of(7, pinned=True, colluding=None)
        assert alone.nodes[0].assumed_colluding(alone.terms()) == 1

    def test_a_run_that_is_over(self, house: Federation) -> None:
        terms = house.terms()
        house.nodes[0].forget(RUN)
        assert self.refusal(house.nodes[0], terms)[0] == "directory"


class TestRosterPinnedLate:
    """A directory of a victim among strangers, from before its owner pinned a roster."""

    def caught(self) -> tuple[Federation, SecureNode]:
        """Return the strangers' federation, and the victim with the roster that they name."""
        honest = [Member(name=f"node-{at}", identity=bytes([at]) * 32) for at in range(1, 9)]
        victim = SecureNode(Identity.generate(), SQLiteStore(None), name="node-0")
        mine = Member(name="node-0", identity=victim.identity.public)
        roster = Roster(federation="tests", members=(mine, *honest))
        strangers = [
            SecureNode(Identity.generate(), SQLiteStore(None), name=f"node-{at}")
            for at in range(1, 9)
        ]
        nodes = sorted([victim, *strangers], key=lambda node: node.identity.public)
        entries = [node.entry(RUN) for node in nodes]
        # The server knows the hash of the file that owners agree on, and names it.
        directory = Directory.first(RUN, entries, roster_hash=roster.hash)
        for node in nodes:
            node.accept(directory)
        pinned = SecureNode(victim.identity, victim.store, name="node-0", roster=roster)
        return Federation(nodes, directory), pinned

    def test_the_victim_answers_no_terms_and_opens_nothing(self) -> None:
        house, victim = self.caught()
        terms = house.terms(cross_check=True)
        online = tuple(range(9))
        labels = {place: bytes(32) for place in online}
        for role in (
            lambda: send(victim, terms, np.zeros(20)),
            lambda: victim.view(terms.to_json(), online, labels),
            lambda: victim.open(terms.to_json(), online, labels, {}),
        ):
            with pytest.raises(Refused, match="not in the roster") as refused:
                role()
            assert refused.value.code == "directory"
        assert not any(victim.store.last(RUN, role) for role in ("sum", "view", "open"))


class TestPromise:
    """Twenty nodes, for whom a plan by default promises 18, two of whom may collude."""

    PLANNED: ClassVar[dict[str, Any]] = {
        "threshold": 16,
        "least": 18,
        "colluding": 2,
        "promised": 16,
    }

    @pytest.mark.parametrize(
        "lie",
        [
            {"least": 16},
            {"least": 16, "promised": 13, "colluding": 0},
            {"least": 5, "cross_check": True, "promised": 2},
            {"cohort": tuple(range(4)), "least": 4, "promised": 2},
        ],
        ids=str,
    )
    def test_a_smaller_sum_than_promised_is_neither_joined_nor_opened(
        self, lie: dict[str, Any]
    ) -> None:
        house = Federation.of(20, pinned=True, colluding=None)
        client, member = house.nodes[0], house.nodes[1]
        send(client, house.terms(**self.PLANNED), np.zeros(20))
        online = tuple(range(18))
        labels = {place: bytes(32) for place in online}
        member.open(house.terms(**self.PLANNED).to_json(), online, labels, {})
        try:
            terms = house.terms(**self.PLANNED | lie | {"number": 2})
        except ValueError as error:
            assert "the terms promise 16" in str(error)
            return
        fewest = terms.cohort[: terms.least]
        labels = {place: bytes(32) for place in fewest}
        for role in (
            lambda: send(client, terms, np.zeros(20)),
            lambda: member.open(terms.to_json(), fewest, labels, {}),
        ):
            with pytest.raises(Refused, match="this run has promised 16") as refused:
                role()
            assert refused.value.code == "policy"

    def test_a_run_that_was_called_done_goes_on_with_its_promise(self) -> None:
        house = Federation.of(20, pinned=True, colluding=None)
        client = house.nodes[0]
        send(client, house.terms(**self.PLANNED), np.zeros(20))
        for node in house.nodes:
            node.forget(RUN)
        again = Federation.meeting(house.nodes)
        small = {"cohort": tuple(range(4)), "least": 4, "threshold": 16, "colluding": 2}
        with pytest.raises(Refused, match="this run has promised 16") as refused:
            send(client, again.terms(**small), np.zeros(20))
        assert refused.value.code == "policy"
        send(
            client, again.terms(**self.PLANNED), np.zeros(20)
        )  # power: the run may go on as promised

    def test_a_run_without_that_promise_may_ask_for_it(self) -> None:
        # Power: the same terms pass where nothing was promised.
        house = Federation.of(20, pinned=True, colluding=None)
        small = house.terms(cohort=tuple(range(4)), least=4, threshold=16, colluding=2)
        send(house.nodes[0], small, np.zeros(20))
