"""Receipts: a client's own message, once, in the one view that enough members signed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from secure_sums import RUN, Asked, Federation, ask, send

from fl_dp.secagg import Directory, Refused, SecureNode, SecureSumFailed
from fl_dp.secagg.receipts import MerkleTree, Receipt, root_over

_LABELS = st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=17)


@given(_LABELS, st.data())
def test_a_path_leads_from_its_own_index_alone_to_the_root(
    labels: list[bytes], data: st.DataObject
) -> None:
    tree = MerkleTree(labels)
    at = data.draw(st.integers(0, len(labels) - 1))
    path = tree.path(at)
    assert root_over(labels[at], at, len(labels), path) == tree.root
    assert root_over(labels[at] + b"x", at, len(labels), path) != tree.root
    assert root_over(labels[at], at, len(labels), (*path, b"x" * 32)) is None
    if path:
        assert root_over(labels[at], at, len(labels), path[:-1]) is None
    elsewhere = data.draw(st.integers(0, len(labels) - 1))
    if labels[elsewhere] != labels[at]:
        assert root_over(labels[at], elsewhere, len(labels), tree.path(elsewhere)) != tree.root
        assert root_over(labels[at], elsewhere, len(labels), path) != tree.root


def test_a_doubled_leaf_has_another_root() -> None:
    labels = [b"a", b"b", b"c"]
    assert MerkleTree(labels).root != MerkleTree([*labels, b"c"]).root


def test_an_inner_node_is_no_leaf() -> None:
    tree = MerkleTree([b"a", b"b", b"c", b"d"])
    inner = tree._levels[1]
    assert MerkleTree(inner).root != tree.root


class TestReceipt:
    """Ten nodes, one lost client, all members asked."""

    @pytest.fixture
    def house(self) -> Federation:
        return Federation.of(10)

    def sum(self, house: Federation, number: int = 1, *, silent: int = 0) -> Asked:
        terms = house.terms(number=number)
        return ask(house, terms, np.zeros((10, 20)), gone=(9,), silent=range(silent))

    def refusal(self, house: Federation, receipt: Receipt, place: int = 2) -> str:
        with pytest.raises(Refused) as refused:
            house.nodes[place].check_receipt(RUN, receipt.to_json())
        assert refused.value.code == "view"
        return str(refused.value)

    def test_is_accepted_by_each_replier(self, house: Federation) -> None:
        asked = self.sum(house)
        for place in range(9):
            assert house.nodes[place].unreceipted(RUN) == 1
            house.nodes[place].check_receipt(RUN, asked.opening.receipt_for(place).to_json())
            assert house.nodes[place].unreceipted(RUN) == 0

    def test_the_tree_is_built_once_for_all_of_them(
        self, house: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        built: list[int] = []

        class Counted(MerkleTree):
            def __init__(self, labels: Sequence[bytes]) -> None:
                built.append(len(labels))
                super().__init__(labels)

        monkeypatch.setattr("fl_dp.secagg.opening.MerkleTree", Counted)
        asked = self.sum(house)
        for place in range(10):
            asked.opening.receipt_for(place)
        assert built == [9]

    def test_of_another_client_is_refused(self, house: Federation) -> None:
        receipt = self.sum(house).opening.receipt_for(3)
        assert "not of this node's message" in self.refusal(house, receipt)

    def test_with_a_wrong_path_is_refused(self, house: Federation) -> None:
        receipt = self.sum(house).opening.receipt_for(2)
        wrong = replace(receipt, path=(bytes(32), *receipt.path[1:]))
        assert "not of this node's message" in self.refusal(house, wrong)

    def test_of_another_number_or_other_terms_is_refused(self, house: Federation) -> None:
        receipt = self.sum(house).opening.receipt_for(2)
        assert "no receipt is due" in self.refusal(house, replace(receipt, number=2))
        self.refusal(house, replace(receipt, terms_hash=bytes(32)))

    def test_with_too_few_signatures_is_refused(self, house: Federation) -> None:
        receipt = self.sum(house).opening.receipt_for(2)
        few = dict(list(receipt.signatures.items())[:7])
        assert "7 members signed, 8 are needed" in self.refusal(
            house, replace(receipt, signatures=few)
        )

    def test_signatures_of_two_views_do_not_add_up(self, house: Federation) -> None:
        terms = house.terms(cross_check=True)
        half = ask(
            house,
            terms,
            np.zeros((10, 20)),
            tell=lambda member, on: on - {9} if member < 5 else on,
        )
        assert {refused.code for refused in half.refusals.values()} == {"quorum"}
        with pytest.raises(SecureSumFailed, match="signed who replied"):
            half.opening.receipt_for(2)
        opening = half.opening
        for member, node in enumerate(house.nodes):
            online, labels, _ = opening.question(member)
            told = tuple(place for place in online if member >= 5 or place != 9)
            opening.view_signatures[member] = node.view(
                terms.to_json(), told, {place: labels[place] for place in told}
            )
        receipt = replace(opening.receipt_for(2), signatures=opening.view_signatures)
        assert len(receipt.signatures) == 10
        assert "5 members signed" in self.refusal(house, receipt)

    def test_of_a_view_that_no_member_may_open_is_refused(self, house: Federation) -> None:
        asked = self.sum(house)
        receipt = replace(asked.opening.receipt_for(2), online=(1, 2))
        tree = MerkleTree([asked.opening.labels[place] for place in (1, 2)])
        forged = replace(receipt, root=tree.root, path=tree.path(1))
        # All members lie: even then a node sees that two clients are fewer than agreed.
        signed = {m: node.identity.sign(forged.view) for m, node in enumerate(house.nodes)}
        assert "2 replied" in self.refusal(house, replace(forged, signatures=signed))

    def test_that_is_no_receipt_is_refused(self, house: Federation) -> None:
        text = self.sum(house).opening.receipt_for(2).to_json()
        for spoilt in (
            "",
            "{}",
            text.replace("[[0,", "[[-1,"),
            text.replace('"online":[', '"on":['),
            # Spans: a text for each set, and no text for a set that fills the memory.
            *(
                text.replace('"online":[[0,8]]', f'"online":{spans}')
                for spans in (
                    "[[0,4],[5,8]]",
                    "[[0,4],[4,8]]",
                    "[[5,8],[0,4]]",
                    "[[8,0]]",
                    "[[0,8,9]]",
                    "[0,8]",
                    "[[0,true]]",
                    "[[0,1000000000]]",
                    "[[0,600000],[600002,1200000]]",
                )
            ),
        ):
            assert spoilt != text
            with pytest.raises(Refused):
                house.nodes[2].check_receipt(RUN, spoilt)

    def test_survives_its_text(self, house: Federation) -> None:
        receipt = self.sum(house).opening.receipt_for(2)
        assert Receipt.from_json(receipt.to_json(), places=61) == receipt

    @given(st.sets(st.integers(0, 60)))
    def test_spans_stand_for_any_set_of_places(self, places: set[int]) -> None:
        receipt = Receipt(
            number=1,
            terms_hash=bytes(32),
            online=tuple(sorted(places)),
            root=bytes(32),
            path=(),
            signatures={},
        )
        assert Receipt.from_json(receipt.to_json(), places=61) == receipt
        assert [place for place in range(62) if receipt.has(place)] == sorted(places)

    def test_a_node_that_demands_receipts_refuses_without(self) -> None:
        house = Federation.of(10, receipts=3)
        for number in (1, 2, 3):
            asked = self.sum(house, number)
        with pytest.raises(Refused, match="3 sums came without a receipt") as refused:
            send(house.nodes[2], house.terms(number=4), np.zeros(20))
        assert refused.value.code == "policy"
        house.nodes[2].check_receipt(RUN, asked.opening.receipt_for(2).to_json())
        send(house.nodes[2], house.terms(number=4), np.zeros(20))

    def test_a_node_whose_answers_come_late_is_not_locked_out(self) -> None:
        house = Federation.of(10, receipts=3)
        for number in range(1, 8):
            send(house.nodes[9], house.terms(number=number), np.zeros(20))  # arrives too late
            asked = self.sum(house, number)
            assert 9 not in asked.opening.receipt_for(9).online
            for place, node in enumerate(house.nodes):
                node.check_receipt(RUN, asked.opening.receipt_for(place).to_json())
        evidence = house.nodes[9].evidence(RUN, ended=True)
        assert evidence.left_out == tuple(range(1, 8))
        assert not evidence.summed and not evidence.missing and not evidence.findings()

    def test_of_a_view_without_the_node_needs_as_many_signatures(self) -> None:
        house = Federation.of(10)
        send(house.nodes[9], house.terms(), np.zeros(20))
        asked = self.sum(house)
        receipt = asked.opening.receipt_for(9)
        few = dict(list(receipt.signatures.items())[:7])
        assert "7 members signed" in self.refusal(house, replace(receipt, signatures=few), 9)
        # Nor can it be had for a node whose message the committee has opened.
        without = asked.opening.online[:2] + asked.opening.online[3:]
        forged = replace(receipt, online=without)
        assert "replied, the terms want" in self.refusal(house, forged)

    def test_of_a_sum_that_never_reached_the_node_is_not_looked_at(self) -> None:
        house = Federation.of(10)
        receipt = self.sum(house).opening.receipt_for(9)  # place 9 was gone
        house.nodes[9].check_receipt(RUN, receipt.to_json())
        assert house.nodes[9].evidence(RUN).left_out == ()


def tales(house: Federation, number: int) -> Asked:
    """Run a sum in which half of the committee is told that the last node is gone."""
    return ask(
        house,
        house.terms(number=number),
        np.zeros((10, 20)),
        tell=lambda member, on: on - {9} if member < 5 else on,
    )


class TestEvidence:
    """What a node keeps of receipts that did not come, whatever comes later."""

    def test_two_tales_stay_a_finding_whatever_later_receipts_say(self) -> None:
        house = Federation.of(10)
        node, honest = house.nodes[2], (3, 6, 9, 12)
        for number in range(1, 13):
            if number in honest:
                asked = ask(house, house.terms(number=number), np.zeros((10, 20)))
                node.check_receipt(RUN, asked.opening.receipt_for(2).to_json())
            else:
                with pytest.raises(SecureSumFailed):  # no view has enough signatures
                    tales(house, number).opening.receipt_for(2)
        evidence = node.evidence(RUN, ended=True)
        assert evidence.summed == honest
        assert evidence.missing == (1, 2, 4, 5, 7, 8, 10, 11)
        assert "no receipt came for sum 1-2, 4-5, 7-8, 10-11" in evidence.findings()[0]

    def test_a_gap_is_not_closed_by_a_receipt_behind_a_later_one(self) -> None:
        house = Federation.of(10)
        first, second = (ask(house, house.terms(number=n), np.zeros((10, 20))) for n in (1, 2))
        node = house.nodes[2]
        for asked in (second, first):
            node.check_receipt(RUN, asked.opening.receipt_for(2).to_json())
        assert node.evidence(RUN).missing == (1,)

    def test_while_a_run_goes_on_its_last_receipt_is_on_its_way(self) -> None:
        house = Federation.of(10)
        for number in (1, 2):
            send(house.nodes[2], house.terms(number=number), np.zeros(20))
        evidence = house.nodes[2].evidence(RUN)
        assert evidence.missing == (1, 2)
        assert ["for sum 1:" in each for each in evidence.findings()] == [True]

    def test_a_run_without_a_sum_takes_no_other_run_s_place(self) -> None:
        house = Federation.of(10)
        node = house.nodes[2]
        send(node, house.terms(), np.zeros(20))
        node.forget(RUN)
        for run in (8, 9):
            entries = [each.entry(run) for each in house.nodes]
            for each in house.nodes:
                each.accept(Directory.first(run, entries))
            node.forget(run)
        assert [each.run for each in node.ended()] == [RUN, 9]
        assert node.ended()[0].missing == (1,)

    def test_a_run_that_has_ended_does_not_begin_again_over_its_evidence(self) -> None:
        """A new sum with a receipt, under its number, would hide one that never had any."""
        house = Federation.of(10)
        for number in (1, 2):
            send(house.nodes[2], house.terms(number=number), np.zeros(20))
        for node in house.nodes:
            node.forget(RUN)
        with pytest.raises(Refused, match="run 7 has ended") as refused:
            house.nodes[2].entry(RUN)
        assert refused.value.code == "directory"
        with pytest.raises(Refused):
            house.nodes[2].accept(house.directory)
        house.nodes[2].forget(RUN)
        assert [each.missing for each in house.nodes[2].ended()] == [(1, 2)]
        house.nodes[2].entry(RUN + 1)

    def test_a_run_that_its_server_never_ends_leaves_evidence_when_its_keys_go(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = Federation.of(10)
        node = house.nodes[2]
        send(node, house.terms(), np.zeros(20))
        later = time.time() + 31 * 86_400
        monkeypatch.setattr("fl_dp.secagg.store.time.time", lambda: later)
        opened = SecureNode(node.identity, node.store, name=node.name)  # any message, any command
        assert not opened.store.runs()
        assert [each.missing for each in opened.ended()] == [(1,)]
