"""Sums come out exactly, whoever is lost down to both thresholds; one below either they fail."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_sums import Federation, ask, segments, send

from fl_dp.secagg import OpenSum, Refused, SecureSumFailed
from fl_dp.secagg.client import MaskedMessage, Participation
from fl_dp.secagg.member import Opened
from fl_dp.secagg.opening import Blame

_numbers = iter(range(1, 10**6))  # cached federations never see a number twice


@lru_cache
def federation(count: int) -> Federation:
    return Federation.of(count)


def wrapped(total: np.ndarray, bits: int) -> np.ndarray:
    """Return integers modulo 2^bits around zero."""
    half = 1 << (bits - 1)
    return (total + half) % (2 * half) - half


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_a_release_is_the_plain_sum_of_the_repliers(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([2, 3, 5, 8, 13, 24, 40]), "n")
    bits = data.draw(st.integers(1, 32), "bits")
    size = data.draw(st.sampled_from([0, 1, 2, 7, 8, 9, 33]), "size")
    cross_check = data.draw(st.booleans(), "cross-check")
    threshold = data.draw(st.integers(max(n // 2 + 1, -(-3 * n // 4)), n), "threshold")
    # From N (2 or more) of `SharedNoise`: least t - (L - t) n >= t + 1, with nobody colluding.
    lowest = 2 if cross_check else -(-(threshold + 1 + (n - threshold) * n) // n)
    least = data.draw(st.integers(max(2, min(lowest, n)), n), "least")
    degree = data.draw(st.sampled_from([n, 2 * max(1, n // 3)]), "degree")
    house = federation(n)
    terms = house.terms(
        number=next(_numbers),
        threshold=threshold,
        least=least,
        degree=degree,
        bits=bits,
        segments=segments(size),
        cross_check=cross_check,
    )
    lost = data.draw(st.permutations(range(n)), "lost")[: data.draw(st.integers(0, n - least))]
    silent = data.draw(st.permutations(range(n)), "silent")[: n - threshold]
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    values = np.random.default_rng(seed).integers(-(2**40), 2**40, (n, size))
    asked = ask(house, terms, values, gone=lost, silent=silent)
    online = set(range(n)) - set(lost)
    if terms.too_thin(online):
        assert {refused.code for refused in asked.refusals.values()} == {"thin"}
        with pytest.raises(SecureSumFailed, match="ring"):
            asked.opening.require_openable()
        return
    asked.opening.require_openable()
    plain = sum((values[place] for place in online), np.zeros(size, np.int64))
    assert (asked.release() == wrapped(plain, bits)).all()
    assert asked.needed == len(asked.answers) == threshold  # not one answer earlier


@pytest.mark.parametrize("cross_check", [False, True])
def test_one_below_either_threshold_fails(cross_check: bool) -> None:
    house = Federation.of(10)
    values = np.arange(200).reshape(10, 20)
    terms = house.terms(cross_check=cross_check)
    assert (terms.least, terms.threshold) == (9, 8)
    few_members = ask(house, terms, values, silent=range(3))
    with pytest.raises(SecureSumFailed, match="of 10 members answered, 8 are needed"):
        few_members.release()
    terms = house.terms(cross_check=cross_check, number=2)
    few_clients = ask(house, terms, values, gone=(4, 5))
    assert not few_clients.answers
    assert {refused.code for refused in few_clients.refusals.values()} == {"view"}
    with pytest.raises(SecureSumFailed, match="8 of 10 clients replied, 9 are needed"):
        few_clients.opening.require_openable()


def test_each_seed_that_is_opened_is_needed() -> None:
    house = Federation.of(10)
    asked = ask(house, house.terms(), np.ones((10, 20), np.int64), gone=(3,))
    assert (asked.release() == 9).all()
    # One's own seed, and the one with the client that is gone: without any of them, noise.
    assert {len(seeds) for seeds in asked.opening._seeds.values()} == {2}
    for at in range(2):
        seeds = asked.opening._seeds[0]
        asked.opening._seeds[0] = tuple(bytes(32) if i == at else s for i, s in enumerate(seeds))
        assert (asked.release() == 9).sum() <= 3  # each of 20 by chance with 2^-16
        asked.opening._seeds[0] = seeds
    assert (asked.release() == 9).all()


class TestFold:
    house = Federation.of(5)
    terms = house.terms(number=1)
    message = send(house.nodes[0], terms, np.zeros(20))

    def test_takes_one_reply_a_client(self) -> None:
        opening = OpenSum(self.terms)
        opening.fold(0, self.message)
        with pytest.raises(Refused) as refused:
            opening.fold(0, self.message)
        assert refused.value.code == "stale" and opening.online == (0,)

    def test_takes_none_after_members_were_asked(self) -> None:
        opening = OpenSum(self.terms)
        opening.question(0)
        with pytest.raises(Refused, match="too late"):
            opening.fold(0, self.message)

    def test_refuses_a_stranger(self) -> None:
        with pytest.raises(Refused, match="not in the cohort"):
            OpenSum(self.terms).fold(5, self.message)

    @pytest.mark.parametrize("part", ["masked", "bundle", "bundles", "commitments"])
    def test_refuses_another_form_and_adds_nothing(self, part: str) -> None:
        whole = self.message
        message = MaskedMessage(
            whole.masked[:-1] if part == "masked" else whole.masked,
            [each[part == "bundle" :] for each in whole.bundles][part == "bundles" :],
            whole.commitments + (b"x" if part == "commitments" else b""),
        )
        opening = OpenSum(self.terms)
        with pytest.raises(Refused) as refused:
            opening.fold(0, message)
        assert refused.value.code == "terms"
        assert opening.online == () and not opening._total.any()


class TestLiesAboutShares:
    """Members or clients that spoil what is opened: found, and left out."""

    def asked(self, *, forge: dict[int, bytes], silent: tuple[int, ...] = ()) -> OpenSum:
        house = Federation.of(10)
        terms = house.terms()
        honest = ask(house, terms, np.ones((10, 20), np.int64), silent=silent)
        opening = OpenSum(terms, house.directory)
        opening._heads, opening._total = honest.opening._heads, honest.opening._total
        opening._asked = True
        for member, (_, opened) in honest.answers.items():
            shares = opened.shares
            if member in forge:
                shares = {place: forge[member] for place in shares}
            opening.answer(member, Opened(shares))
        return opening

    def test_forged_shares_are_found_and_their_members_named(self) -> None:
        opening = self.asked(forge={0: bytes(32), 4: b"\x01" * 32})
        assert (opening.release() == 10).all()
        assert opening.blame() == Blame(frozenset(), frozenset({0, 4}), frozenset())

    def test_a_forged_share_too_many_fails(self) -> None:
        opening = self.asked(forge={0: bytes(32)}, silent=(1, 2))
        assert not opening.enough
        with pytest.raises(SecureSumFailed, match="can't be opened"):
            opening.release()

    def test_a_share_of_the_wrong_length_is_no_answer(self) -> None:
        opening = self.asked(forge={0: bytes(31)})
        assert (opening.release() == 10).all() and opening.blame().members == {0}

    def test_wrong_commitments_are_the_clients(self) -> None:
        house = Federation.of(10)
        terms = house.terms()
        opening = OpenSum(terms)
        for place in range(10):
            message = send(house.nodes[place], terms, np.zeros(20))
            if place == 3:
                message = MaskedMessage(message.masked, message.bundles, bytes(160))
            opening.fold(place, message)
        for member in range(10):
            question = opening.question(member)
            opening.answer(member, house.nodes[member].open(terms.to_json(), *question))
        assert not opening.enough and opening.blame().clients == {3}

    def test_an_unreadable_bundle_is_named_and_no_reason_to_refuse_the_rest(self) -> None:
        house = Federation.of(10)
        terms = house.terms()
        opening = OpenSum(terms)
        for place in range(10):
            message = send(house.nodes[place], terms, np.zeros(20))
            if place == 3:
                message.bundles[7] = bytes(len(message.bundles[7]))
            opening.fold(place, message)
        opened = house.nodes[7].open(terms.to_json(), *opening.question(7))
        assert opened.unreadable == (3,) and set(opened.shares) == set(range(10)) - {3}
        for member in range(9):  # eight others can open it
            answer = (
                opened
                if member == 7
                else house.nodes[member].open(terms.to_json(), *opening.question(member))
            )
            opening.answer(member, answer)
        assert (opening.release() == 0).all()

    @pytest.mark.parametrize(("unreadable", "blamed"), [(1, set()), (2, {3}), (10, {3})])
    def test_bundles_that_more_than_may_lie_can_not_read_are_the_clients(
        self, unreadable: int, blamed: set[int]
    ) -> None:
        """Else one client would make every sum fail, and stay."""
        house = Federation.of(10)
        terms = house.terms(colluding=1)
        opening = OpenSum(terms)
        for place in range(10):
            message = send(house.nodes[place], terms, np.zeros(20))
            if place == 3:
                message.bundles[:unreadable] = [bytes(len(message.bundles[0]))] * unreadable
            opening.fold(place, message)
        for member, node in enumerate(house.nodes):
            opening.answer(member, node.open(terms.to_json(), *opening.question(member)))
        assert opening.enough is (unreadable < 3)
        assert opening.blame().clients == blamed

    def test_a_second_answer_and_a_strangers_are_left_out(self) -> None:
        opening = self.asked(forge={0: bytes(32)}, silent=(1, 2))
        right = Opened({place: b"\x05" * 32 for place in range(10)})
        opening.answer(0, right)
        opening.answer(99, right)
        assert opening._answered == {0, 3, 4, 5, 6, 7, 8, 9} and not opening.enough


class TestParticipation:
    house = Federation.of(3)

    def begin(self, number: int) -> Participation:
        terms = self.house.terms(number=number)
        return self.house.nodes[0].begin(
            terms.to_json(), content=terms.content, purpose=terms.purpose
        )

    def test_is_usable_once(self) -> None:
        part = self.begin(1)
        part.message(np.zeros(20, np.int64))
        with pytest.raises(RuntimeError, match="one message"):
            part.message(np.zeros(20, np.int64))

    @pytest.mark.parametrize("values", [np.zeros(19, np.int64), np.zeros(20), np.zeros((20, 1))])
    def test_wants_whole_steps_of_the_right_size(self, values: np.ndarray) -> None:
        part = self.begin(next(_numbers) + 10)
        with pytest.raises(ValueError, match="int64 of shape"):
            part.message(values)
        part.message(np.zeros(20, np.int64))  # a mistake before the masks were used costs nothing

    def test_two_messages_of_one_value_have_nothing_in_common(self) -> None:
        first, second = (self.begin(next(_numbers) + 10**7 + at) for at in range(2))
        messages = [part.message(np.zeros(20, np.int64)) for part in (first, second)]
        assert messages[0].masked != messages[1].masked
        assert not set(messages[0].bundles) & set(messages[1].bundles)
        assert messages[0].commitments[16:] != messages[1].commitments[16:]
