"""Who adds the noise: nobody, the server, or each client for itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import calibrated_plan
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from local_grid import (
    FIRST_NODE,
    Answer,
    LocalGrid,
    answer_with_app,
    arrays_of,
    introducing,
    reply,
)
from trainings import (
    SIX_SIGMA,
    FixedClient,
    Training,
    able,
    client_fn,
    noised,
    plan_of,
    record,
    train,
)

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import OwnRatesSampling, PoissonSampling, VisibleSampling
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.clients import compression_mod, noised_client_app, numpy_client_app
from fl_dp.mechanisms import FixedClipping, client_scheme
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import INSTRUCTION_KEY, NOISED_KEY
from fl_dp.strategies import (
    DPFedAvg,
    LawSelection,
    PublicSelection,
    RehearsalFailed,
    RosterIncomplete,
    Unit,
)
from fl_dp.updates import Compression

N, CLIP, SIZE = 10, 0.5, 20_000
SCHEMES = ("gaussian", "laplace", "exponential")
MODEL = record(w=np.zeros(SIZE))
STD_ERROR = SIX_SIGMA * 2.0 / math.sqrt(2 * SIZE)  # a Laplace variance has more than twice as much


def clients_of(num_clients: int, update: Any = 0.0) -> Answer:
    app = numpy_client_app(client_fn(lambda node: FixedClient(update)))
    return answer_with_app(app, num_clients)


def foreign_clients(num_clients: int, update: float = 0.0) -> Answer:
    """A ClientApp over Flower's own API that knows nothing of us but the mod in front."""
    app = noised_client_app()

    @app.train()
    def train_it(message: Message, context: Context) -> Message:
        return reply(
            message, {name: values + update for name, values in arrays_of(message).items()}
        )

    return answer_with_app(app, num_clients)


def local_plan(scheme: str, **changes: Any) -> Any:
    fields: dict[str, Any] = dict(
        client_scheme=scheme, noise_multiplier=2.0, clipping=FixedClipping(norm=CLIP)
    )
    return plan_of(N, **(fields | changes))


# --- local --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("answer", [clients_of(N), foreign_clients(N)], ids=["ours", "foreign"])
def test_in_local_mode_the_mean_has_the_noise_of_the_clients_and_no_other(
    tmp_path: Path, scheme: str, answer: Answer
) -> None:
    # 20,000 draws, tolerance 6 %: noise that one of two clients forgot would be 29 % away.
    trained = train(tmp_path, local_plan(scheme), answer, MODEL)
    own = client_scheme(scheme, noise_multiplier=2.0, clipping_norm=CLIP).noise_std
    assert np.std(trained.move) == pytest.approx(own * math.sqrt(N) / N, rel=STD_ERROR)


@pytest.mark.parametrize("participants", [0, 3])
def test_in_local_mode_the_server_adds_nothing_to_what_it_gets(
    tmp_path: Path, participants: int
) -> None:
    @able(Ability.NOISE)
    def answer(message: Message, node: int) -> Message | None:
        return noised(message, w=np.full(SIZE, 0.25)) if node < participants else None

    trained = train(tmp_path, local_plan("gaussian"), answer, MODEL, timeout=1.5)
    np.testing.assert_array_equal(trained.move, np.full(SIZE, 0.25 * participants / N))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_in_local_mode_each_client_is_told_its_noise_and_charged_in_full(
    tmp_path: Path, scheme: str
) -> None:
    plan = local_plan(scheme, rounds=2)
    trained = train(tmp_path, plan, clients_of(N), MODEL)
    assert len(trained.grid.sent) == 2 * N
    for message in trained.grid.sent:
        told = json.loads(str(message.content["config"][INSTRUCTION_KEY]))
        assert told["client_noise"] == {
            "scheme": scheme,
            "noise_multiplier": 2.0,
            "clipping_norm": CLIP,
            "epsilon": plan.budget.epsilon,
            "delta": plan.budget.delta / DECLARED_SHARE,
            "neighboring_relation": "zero-out",
            "levels": None,
        }
    assert trained.ledger is not None
    assert trained.ledger.history == plan.history
    assert trained.ledger.rounds_committed == 2


def test_in_local_mode_a_client_that_fails_still_sends_its_noise(tmp_path: Path) -> None:
    app = noised_client_app()

    @app.train()
    def fails(message: Message, context: Context) -> Message:
        raise RuntimeError("out of memory")

    trained = train(tmp_path, local_plan("gaussian"), answer_with_app(app, N), MODEL)
    assert np.std(trained.move) == pytest.approx(2.0 * CLIP / math.sqrt(N), rel=STD_ERROR)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_in_local_mode_a_message_that_is_not_finite_is_left_out(tmp_path: Path, bad: float) -> None:
    @able(Ability.NOISE)
    def answer(message: Message, node: int) -> Message:
        return noised(message, w=np.full(SIZE, bad if node == 0 else 0.25))

    trained = train(tmp_path, local_plan("gaussian"), answer, MODEL)
    np.testing.assert_allclose(trained.move, 0.25 * 0.9, rtol=1e-12)


# --- What a reply says of its noise ---------------------------------------------------------------


def forgetful(num_clients: int, *, mods: Any = ()) -> Answer:
    """A ClientApp as there are many, without the noise that it was asked for."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train_it(message: Message, context: Context) -> Message:
        return reply(message, {"w": arrays_of(message)["w"] + 3.0})

    return answer_with_app(app, num_clients)


@pytest.mark.parametrize("mods", [(), (compression_mod,)], ids=["plain", "compressing"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_app_that_forgot_the_noise_is_refused_before_anything_is_asked(
    tmp_path: Path, scheme: str, mods: Any
) -> None:
    plan, compression = local_plan(scheme), Compression(up="float16") if mods else None
    grid = LocalGrid(forgetful(N, mods=mods), N)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger, compression=compression)
        with pytest.raises(RehearsalFailed, match=r"adds none: write .*noised_client_app\(\)"):
            strategy.start(grid, MODEL, num_rounds=1)
        assert (ledger.rounds_spent, grid.sent) == (0, [])


def test_an_app_that_forgot_the_noise_and_is_silent_beforehand_contributes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plainly, mine = forgetful(N), foreign_clients(N)

    @introducing
    def answer(message: Message, node: int) -> Message | None:
        if node != 0:
            return mine(message, node)
        if message.metadata.message_type != "train":
            return Message(Error(code=2, reason="KeyError"), reply_to=message)
        return plainly(message, node)

    quiet = local_plan("gaussian", noise_multiplier=1e-4)
    trained = train(tmp_path, quiet, answer, record(w=np.zeros(4)))
    np.testing.assert_allclose(trained.move, 0.0, atol=1e-3)  # 0.3 with the reply
    assert caplog.text.count("it does not say that it has the noise of this round") == 1


SAID: dict[str, dict[str, Any]] = {
    "as asked": {},
    "another scheme": {"scheme": "laplace"},
    "less noise": {"noise-multiplier": 1.0},
    "a longer norm": {"clipping-norm": 2 * CLIP},
    "another round": {"round": 2},
    "nothing": {"round": None, "scheme": None, "noise-multiplier": None, "clipping-norm": None},
    "a list": {"scheme": ["gaussian"]},
    "more": {"and": "so on"},
}


@pytest.mark.parametrize("said", SAID)
def test_a_reply_that_says_anything_but_what_was_asked_contributes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    @able(Ability.NOISE)
    def answer(message: Message, node: int) -> Message:
        answered = noised(message, w=np.full(SIZE, 0.25))
        kept: Any = {**answered.content[NOISED_KEY], **SAID[said]}
        fields = {key: value for key, value in kept.items() if value is not None}
        answered.content[NOISED_KEY] = ConfigRecord(fields)
        return answered

    move = train(tmp_path, local_plan("gaussian"), answer, MODEL).move
    np.testing.assert_array_equal(move, np.full(SIZE, 0.25 if said == "as asked" else 0.0))
    refused = caplog.text.count("it does not say that it has the noise of this round")
    assert refused == (said != "as asked")


def test_a_client_of_one_group_can_t_send_the_noise_of_another(tmp_path: Path) -> None:
    law = OwnRatesSampling.at(1.0, budgets=(1.0, 8.0), shares=(0.5, 0.5))
    plan = calibrated_plan(
        PrivacyBudget(epsilon=8.0, delta=1e-3),
        rounds=1,
        num_clients=N,
        sampling=law,
        clipping=FixedClipping(norm=CLIP),
        client_scheme="gaussian",
        contribution_check=False,
    )
    told: dict[int, float] = {}

    @able(Ability.NOISE)
    def answer(message: Message, node: int) -> Message:
        answered = noised(message, w=np.full(4, 1.0))
        stated = answered.content.config_records[NOISED_KEY]
        told[node] = float(str(stated["noise-multiplier"]))
        stated["noise-multiplier"] = least
        return answered

    least = plan.noise_multipliers[0] / law.own_groups[1].scale  # of those who allow most
    moved = train(tmp_path, plan, answer, record(w=np.zeros(4))).move
    assert len(set(told.values())) == 2
    weights = sum(law.own_groups[1].weight for own in told.values() if own == least)
    assert 0 < weights < N
    np.testing.assert_allclose(moved, weights / plan.denominator, rtol=1e-12)


# --- central ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling_rate", [0.5, 1.0])
def test_a_plain_central_round_asks_nothing_of_a_client_but_training(
    tmp_path: Path, sampling_rate: float
) -> None:
    app = ClientApp()  # no mod, no key of ours

    @app.train()
    def train_it(message: Message, context: Context) -> Message:
        assert INSTRUCTION_KEY not in message.content["config"]
        return reply(message, {"w": arrays_of(message)["w"] + 0.25})

    plan = plan_of(
        N, sampling_rate=sampling_rate, noise_multiplier=1e-4, clipping=FixedClipping(norm=100.0)
    )
    trained = train(tmp_path, plan, answer_with_app(app, N), MODEL)
    asked = len(trained.grid.sent)
    expected = 0.25 * asked / plan.denominator
    np.testing.assert_allclose(trained.move, expected, atol=SIX_SIGMA * 1e-2 / plan.denominator)
    for message in trained.grid.sent:
        assert set(message.content["config"]) == {"server-round"}


# --- none ---------------------------------------------------------------------------------------


def unprotected(answer: Answer, **options: Any) -> Training:
    """A training of everybody without a plan."""
    return train(
        None,
        None,
        answer,
        MODEL,
        nodes=N,
        selection=LawSelection(PoissonSampling(sampling_rate=1.0)),
        **options,
    )


def test_without_a_plan_nothing_is_clipped_and_no_noise_is_added_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trained = unprotected(clients_of(N, 100.0))
    np.testing.assert_array_equal(trained.move, np.full(SIZE, 100.0))
    assert trained.ledger is None
    assert "NO PRIVACY" in caplog.text
    for message in trained.grid.sent:
        assert set(message.content["config"]) == {"server-round"}


def test_without_a_plan_bad_updates_and_bad_weights_are_left_out() -> None:
    def answer(message: Message, node: int) -> Message:
        if node == 3:
            return Message(Error(code=2, reason="failed"), reply_to=message)
        value = {1: np.nan, 2: np.inf}.get(node, float(node))
        weight = {4: math.nan, 5: -1.0, 6: 3}.get(node, 1)
        return reply(message, {"w": np.full(SIZE, value)}, **{"num-examples": weight})

    trained = unprotected(answer)
    expected = (0 + 3 * 6 + 7 + 8 + 9) / 7  # nodes 0, 6 (three times), 7, 8 and 9
    np.testing.assert_allclose(trained.move, expected, rtol=1e-12)


@pytest.mark.parametrize("weight", [0, None])
def test_without_a_plan_a_round_of_no_weight_leaves_the_model_as_it_is(weight: Any) -> None:
    def answer(message: Message, node: int) -> Message | None:
        return (
            None if weight is None else reply(message, {"w": np.ones(SIZE)}, **{"num-examples": 0})
        )

    assert not unprotected(answer, timeout=1.5).move.any()


# --- a cap on how often one unit takes part -----------------------------------------------------


def named_clients(names: list[str]) -> Answer:
    """Our own clients on nodes whose config has a stable name."""
    app = numpy_client_app(client_fn(lambda node: FixedClient(0.0)))
    contexts = {
        node: Context(
            1, FIRST_NODE + node, {"partition-id": node, "dp-unit-name": name}, RecordDict(), {}
        )
        for node, name in enumerate(names)
    }
    return introducing(lambda message, node: app(message, contexts[node]))


class Renumbered(LocalGrid):
    """Node ids of another run: the same places, other numbers."""

    first = 9000

    def get_node_ids(self) -> Any:
        return range(self.first, self.first + self.num_nodes)

    def push_messages(self, messages: Any) -> Any:
        answer, self.answer = self.answer, lambda m, n: answer(m, n + FIRST_NODE - self.first)
        try:
            return super().push_messages(messages)
        finally:
            self.answer = answer


def run(folder: Path, plan: Any, grid: LocalGrid, rounds: int) -> tuple[DPFedAvg, PrivacyLedger]:
    """Go on with the training of a folder, and return its strategy and its ledger, closed."""
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        strategy.start(grid, record(w=np.zeros(3)), num_rounds=rounds)
    return strategy, ledger


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
def test_a_cap_holds_over_two_runs_in_which_flower_numbers_the_nodes_anew(
    tmp_path: Path, scheme: str | None
) -> None:
    names = [f"clinic {letter}" for letter in "abcd"]
    plan = plan_of(
        4, rounds=8, sampling=VisibleSampling(cohort=2), participation_cap=2, client_scheme=scheme
    )
    first, ledger = run(tmp_path, plan, LocalGrid(named_clients(names), 4), 3)
    assert sum(ledger.participations.values()) == 6
    assert not first.budget_exhausted
    # The second run: the names in another order, too.
    second, ledger = run(tmp_path, plan, Renumbered(named_clients(names[::-1]), 4), 8)
    assert second.budget_exhausted
    assert second.rounds_completed == 1
    assert ledger.participations == dict.fromkeys(names, 2)


def test_who_claims_another_ones_name_keeps_both_out(tmp_path: Path) -> None:
    plan = plan_of(3, rounds=3, participation_cap=2)
    answer = named_clients(["one", "two", "two"])
    trained = train(tmp_path, plan, answer, record(w=np.zeros(3)))
    assert trained.ledger is not None
    assert trained.ledger.participations == {"one": 2}


def silent_about_names(answer: Answer, silent: set[int], *, fails: bool = True) -> Answer:
    """Let some nodes fail when they are asked for their names, or answer without one."""

    def answer_or_fail(message: Message, node: int) -> Message | None:
        if message.metadata.message_type == "train" or node not in silent:
            return answer(message, node)
        if fails:
            return Message(Error(code=2, reason="no"), reply_to=message)
        return Message(RecordDict({"identity": ConfigRecord({"name": ""})}), reply_to=message)

    return introducing(answer_or_fail)


def test_after_a_first_run_nobody_takes_part_who_can_not_be_told_apart(tmp_path: Path) -> None:
    names = list("abcde")
    plan = plan_of(5, rounds=9, participation_cap=2)
    _, ledger = run(tmp_path, plan, LocalGrid(named_clients(names), 5), 1)
    assert ledger.participations == dict.fromkeys(names, 1)
    failing = silent_about_names(named_clients(names), {0, 1, 2})
    with pytest.raises(RosterIncomplete, match="3 of 5 nodes"):
        run(tmp_path, plan, Renumbered(failing, 5), 9)
    assert PrivacyLedger.read(tmp_path / "ledger.db").rounds_spent == 1
    nameless = silent_about_names(named_clients(names), {0, 1, 2}, fails=False)
    _, ledger = run(tmp_path, plan, Renumbered(nameless, 5), 9)
    assert ledger.participations == {"a": 1, "b": 1, "c": 1, "d": 2, "e": 2}


def test_counts_by_the_ids_of_an_earlier_run_can_not_go_on(tmp_path: Path) -> None:
    plan = plan_of(3, rounds=5, participation_cap=2)
    answer = silent_about_names(named_clients(list("abc")), {0, 1, 2}, fails=False)
    run(tmp_path, plan, LocalGrid(answer, 3), 1)
    with pytest.raises(ValueError, match="by Flower's node ids"):
        run(tmp_path, plan, Renumbered(named_clients(list("abc")), 3), 5)
    assert PrivacyLedger.read(tmp_path / "ledger.db").rounds_spent == 1


def test_who_connects_anew_under_a_cap_waits_for_the_next_run(tmp_path: Path) -> None:
    class Reconnecting(LocalGrid):
        """One node comes back under another id after each round."""

        def get_node_ids(self) -> Any:
            rounds = len({message.metadata.group_id for message in self.sent if is_train(message)})
            return [FIRST_NODE, FIRST_NODE + 1, FIRST_NODE + 2 + 10 * rounds]

        def push_messages(self, messages: Any) -> Any:
            answer, self.answer = self.answer, lambda m, n: answer(m, min(n, 2))
            try:
                return super().push_messages(messages)
            finally:
                self.answer = answer

    def is_train(message: Message) -> bool:
        return bool(message.metadata.message_type == "train")

    plan = plan_of(3, rounds=6, participation_cap=2)
    _, ledger = run(tmp_path, plan, Reconnecting(named_clients(list("abc")), 3), 6)
    assert ledger.participations == {"a": 2, "b": 2, "c": 1}


def test_under_a_cap_only_units_with_participations_left_are_asked(tmp_path: Path) -> None:
    law = VisibleSampling(cohort=1, participation_cap=2)
    plan = plan_of(3, rounds=4, sampling=law)

    def favourite(unit: Unit, server_round: int) -> float:
        return -float(unit.node)

    trained = train(
        tmp_path,
        plan,
        named_clients(["a", "b", "c"]),
        record(w=np.zeros(3)),
        selection=PublicSelection(law, score=favourite),
    )
    asked = [
        m.metadata.dst_node_id for m in trained.grid.sent if m.metadata.message_type == "train"
    ]
    assert asked == [FIRST_NODE, FIRST_NODE, FIRST_NODE + 1, FIRST_NODE + 1]


def test_a_cap_needs_everybody_in_sight() -> None:
    with pytest.raises(ValueError, match="participation cap"):
        plan_of(4, sampling=PoissonSampling(sampling_rate=0.5), participation_cap=1)
