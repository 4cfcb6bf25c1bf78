"""Receipts: a client's own message, once, in the one view that enough members signed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from secure_sums import RUN, Asked, Federation, ask, send

from fl_dp.secagg import Receipt, Refused, SecureSumFailed
from fl_dp.secagg.receipts import MerkleTree, root_over

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
        with pytest.raises(KeyError):
            asked.opening.receipt_for(9)

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
        ):
            with pytest.raises(Refused):
                house.nodes[2].check_receipt(RUN, spoilt)

    def test_survives_its_text(self, house: Federation) -> None:
        receipt = self.sum(house).opening.receipt_for(2)
        assert Receipt.from_json(receipt.to_json()) == receipt

    def test_a_node_that_demands_receipts_refuses_without(self) -> None:
        house = Federation.of(10, receipts=3)
        for number in (1, 2, 3):
            asked = self.sum(house, number)
        with pytest.raises(Refused, match="3 sums came without a receipt") as refused:
            send(house.nodes[2], house.terms(number=4), np.zeros(20))
        assert refused.value.code == "policy"
        house.nodes[2].check_receipt(RUN, asked.opening.receipt_for(2).to_json())
        send(house.nodes[2], house.terms(number=4), np.zeros(20))
