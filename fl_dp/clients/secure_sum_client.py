"""A client of a secure sum: its values leave the node masked, with a share of the noise.

    deadline, policy -> secure_sum_mod -> the handler that trains and sums the node's units

The inner handler knows nothing of it. It answers with the units' sum in grid steps, as if the
server added the noise (`sum_of_units`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from fl_dp import clock
from fl_dp.accounting import (
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
    SharedNoise,
)
from fl_dp.accounting.shared_noise import shared_noise_multiplier, shared_noise_slack, within_slack
from fl_dp.codec import decode_text
from fl_dp.files import StorageUnavailable
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import NoiseShare, SecureRandom
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.protocol.instruction import SumInstruction
from fl_dp.protocol.secure_sum_messages import (
    content_digest,
    masked_to_content,
    terms_in,
    without_terms,
)
from fl_dp.secagg import Refused, SecureNode, SumTerms
from fl_dp.secagg.terms import require_time, work_ends
from fl_dp.user_code import Contained

from .owner.cut_off import Apart
from .owner.mod_host import present_host
from .owner.node_config import NodeConfig
from .owner.node_privacy import NodePrivacy, in_simulation
from .owner.slots import Slots, working_in
from .records import config_of, instruction_of
from .secure_node import at_work, keys_folder, open_store, secure_node
from .simulated_failures import note_failure
from .summed import AskedSum, Values, summed_of

logger = logging.getLogger("flwr.fl_dp.client")

_DIGITS = 10  # of a multiplier, after the first
_LATE = "late"  # key of a Flower run that gets nothing more, unless its value is empty
_BEGUN, _FAILED, _ENDED = b"begun", b"once", b""


def secure_sum_mod(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    *,
    declared_gradients: str | None = None,
) -> Message:
    """Answer a message that has the terms of a secure sum with masked, noised values.

    `numpy_client_app` has it built in, outside all mods but the deadline and the owner's policy.
    Messages without terms pass; those that ask for gradients of records are refused.

    Privacy: the reply alone is uniformly random, whatever the data are. Members open the sum over
    at least as many clients as the terms guarantee. That sum is as private as one Gaussian of the
    multiplier charged here, computed from the terms and the owner's own assumption of who
    colludes. The charge is written before training. A unit or record that fails contributes zero,
    alone. A node of one unit whose work fails, and one whose budget is spent, send the same noise
    around zero. It can't be distinguished from any other; that the node replied is not hidden.

    If work of several units or records fails or is late as a whole, the node sends nothing for
    this sum and the rest of the Flower run. One of them could cause it, and move the sum by all
    others. The same holds for work that ends the node's process, even of one unit: otherwise each
    sum would tell one bit of its data. So a real node marks that work begins, and removes
    the mark after it; a gate does once the answer has left.

    With secret coins the answer leaves at `reply_after`, and work has its own process, forked
    before any key is read. A unit that overruns its slot contributes zero, alone. If marks and
    ledger take until the first slot, this sum gets the noise around zero, and no more.

    `declared_gradients` is for the node's ledger; see `ChargeTerms`.

    Raises:
        Refused: The terms are not what the node was sent, contradict themselves, are less than its
            owner asks for, or were answered before. `busy`: an earlier message of the run is
            worked on, come again. These depend on no data. `late` can: work failed, was late or
            ended its process, now or before in this Flower run.
        ValueError: No sum can be made of the message.
    """
    text = terms_in(message.content)
    if text is None:
        instruction = instruction_of(message)
        if instruction is not None and instruction.of_records:
            raise Refused("terms", "gradients of records leave a node in a secure sum alone")
        return call_next(message, context)
    began = clock.now()
    terms, content = SumTerms.from_json(text), content_digest(message.content)
    message.content = without_terms(message.content)
    summed = summed_of(message)
    _require_matching(terms, summed)
    due = _answers_after(terms)
    slots = None if due is None else Slots.within(began, began + work_ends(due))

    def work() -> Values:
        reply = call_next(message, context)
        if reply.has_error():
            raise ValueError("the handler replied with an error")
        return summed.values(reply)

    late, silent = False, f"{_LATE} {context.run_id}"  # the server may name its runs as it likes
    real = not in_simulation()
    process = nullcontext() if slots is None else _forked(work, terms, slots)
    with (
        process as apart,
        # Locked after the fork, as a child would hold the lock, too.
        at_work(keys_folder(context), context.run_id) if real else nullcontext(),
        secure_node(context) as node,
    ):
        if node.store.get(None, silent):
            raise Refused(
                "late",
                "work failed, was late or ended its process before: this run gets nothing more",
            )
        kind = message.metadata.message_type
        part = node.begin(text, content=content, purpose=kind)
        share = terms.share
        steps: NDArray[np.int64] | None = None
        paid = _paid(terms, share, node, summed.price, message, context, declared_gradients)
        marked = real and paid
        if marked:
            node.store.put(None, silent, _BEGUN)
        if slots is not None and clock.now() > slots.begin:
            # Nothing was read yet. So it depends on no data, and concerns this sum alone.
            logger.error("marks and ledger took until the work's first slot: nothing is added")
        elif paid:
            with Contained("the client's work failed or was late, and is not sent") as attempt:
                values = work() if apart is None else _values_of(apart, terms)
                steps = share.encode(values, SecureRandom())
            if attempt.failure is not None:
                note_failure(attempt.failure)
                late = not summed.of_one
        if late:
            node.store.put(None, silent, _FAILED)
        elif marked:
            present_host().once_sent(lambda: _end_mark(context, silent))
        if steps is None:
            zeros = [np.zeros(segment.size) for segment in terms.segments]
            steps = share.encode(zeros, SecureRandom())
        masked = part.message(steps)
    if due is not None:
        remaining = began + due - clock.now()
        if remaining < 0.0:
            logger.error("noise and masks were %.3g s late: reply_after is too short", -remaining)
        clock.sleep(remaining)
    if late:
        raise Refused("late", "work failed or was late: this run gets nothing more")
    return Message(masked_to_content(masked), reply_to=message)


def _end_mark(context: Context, silent: str) -> None:
    """Remove the mark of work that has ended."""
    with open_store(context) as store:
        store.put(None, silent, _ENDED)


def _answers_after(terms: SumTerms) -> float | None:
    """The seconds after which the node answers; None: when it is ready.

    Only the time of secret coins reveals something, and not in a simulation, whose nodes share
    processors.

    Raises:
        Refused: Coins would show, or a lying server has the time end within the noise and masks.
    """
    if terms.sampling_rate in (None, 1.0) or in_simulation():
        return None
    if terms.reply_after is None:
        raise Refused("terms", "secret coins without reply_after would show in the time they take")
    try:
        require_time(terms.reply_after, terms.size)
    except ValueError as error:
        raise Refused("terms", f"{error}") from error
    return terms.reply_after


def _forked(work: Callable[[], Values], terms: SumTerms, slots: Slots) -> Apart:

    def flat() -> NDArray[np.float64]:
        with working_in(slots):
            return np.concatenate(work())

    return present_host().apart(flat, terms.size, until=slots.until)


def _values_of(apart: Apart, terms: SumTerms) -> Values:
    """Return what a process sends."""
    flat = apart.result()
    if flat is None:
        raise TimeoutError("its process failed, or was not done in time")
    ends = np.cumsum([segment.size for segment in terms.segments])
    return np.split(flat, ends[:-1])


def _require_matching(terms: SumTerms, summed: AskedSum) -> None:
    """Check that the terms' noise is for the rate and the norms of the message's units."""
    rate = 1.0 if terms.sampling_rate is None else terms.sampling_rate
    if summed.sampling_rate != rate:
        raise Refused("terms", "the units are to be drawn at another rate than the terms charge")
    segments = [(segment.size, segment.clipping_norm) for segment in terms.segments]
    if segments != summed.segments:
        raise Refused("terms", "its segments are not what the units are clipped to")


def _paid(
    terms: SumTerms,
    share: NoiseShare,
    node: SecureNode,
    asked: SumInstruction,
    message: Message,
    context: Context,
    declared_gradients: str | None,
) -> bool:
    """Charge a sum, and tell whether it could be paid; if not, the node adds noise alone.

    Raises:
        Refused: `policy`, if the run asks for more than it did at first.
    """
    assumed = replace(terms.noise, colluding=node.assumed_colluding(terms))
    try:
        _require_promised(terms, node, asked)
        multiplier = _multiplier_of(terms, share, assumed, context)
        most = node.largest(terms)
        _charge(terms, multiplier, most, asked, message, context, declared_gradients)
    except PrivacyBudgetExhausted as exhausted:
        logger.info("%s; the sum gets the noise around zero", exhausted)
        return False
    except Refused:
        raise
    except StorageUnavailable as unavailable:
        logger.error("%s; the sum gets the noise around zero", unavailable)
        return False
    except Exception:
        logger.exception("nothing can be charged; the sum gets the noise around zero")
        return False
    return True


def _require_promised(terms: SumTerms, node: SecureNode, asked: SumInstruction) -> None:
    """Check the message's price against the first one of the run.

    Raises:
        Refused: `policy`, if it allows itself more of the node, or has other neighbours.
    """
    text = json.dumps(asdict(asked), sort_keys=True)
    # Not of the run's values, which a server deletes when it calls the run done.
    stored = node.store.first(f"promise {terms.run}", text.encode())
    first = decode_text(SumInstruction, stored.decode())
    for name in ("epsilon", "delta"):
        before, now = getattr(first, name), getattr(asked, name)
        if before is not None and (now is None or now > before):
            raise Refused("policy", f"the run said {name}={before:g} at first, and now {now}")
    before, now = first.neighboring_relation, asked.neighboring_relation
    if now != before:
        raise Refused("policy", f"the run said its neighbours are {before}, and now {now!r:.50}")


def _charge(
    terms: SumTerms,
    multiplier: float,
    largest: tuple[int, int],
    asked: SumInstruction,
    message: Message,
    context: Context,
    declared_gradients: str | None,
) -> None:
    """Write the sum to the node's ledger, if it has one, before anything is computed.

    Raises:
        PrivacyBudgetExhausted: It would exceed what the server or the node's owner allows.
        ValueError: The node has a ledger and there is no budget.
    """
    node = NodePrivacy.from_context(context, config_of(message))
    if node.ledger is None:
        return
    cap, limit, budget = node.cap, node.limit_of_noise(asked), node.budget_of_noise(asked)
    account = node.account(unit=asked.unit)
    with node.open_ledger() as ledger:
        spending = ledger.spending(account)
        charged = spending.charges
        if not charged and (
            budget.epsilon < (asked.epsilon or 0.0) or budget.delta < (asked.delta or 0.0)
        ):
            logger.warning(
                "this node's owner allows %s, less than the training asks for: once it is spent, "
                "the node adds noise alone",
                Guarantee.together(
                    budget.epsilon,
                    budget.delta,
                    unit=asked.unit,
                    neighbours=asked.neighboring_relation,
                ),
            )

        def less_slack(budget: PrivacyBudget, released: int) -> PrivacyBudget:
            # A power of two, beyond what is planned: a budget that changed with every sum would
            # have to be certified each time.
            sums = max(asked.rounds, 1 << released.bit_length())
            return within_slack(budget, shared_noise_slack(sums, *largest))

        if limit is not None:
            released = 0
            if limit.run in spending.runs:
                released = spending.runs[limit.run].releases.total()
            limit = replace(limit, budget=less_slack(limit.budget, released))
        if cap is not None:
            cap = less_slack(cap, charged)
        ledger.charge(
            account,
            _event(multiplier, terms.sampling_rate),
            budget=cap,
            limit=limit,
            what=f"run {context.run_id}",
            neighboring_relation=NeighboringRelation(asked.neighboring_relation),
            use=node.use(message.metadata.message_type),
            declared_gradients=declared_gradients,
        )


def _multiplier_of(
    terms: SumTerms, share: NoiseShare, shares: SharedNoise, context: Context
) -> float:
    """The noise multiplier of the shares unknown to the adversary.

    Raises:
        ValueError: They are too few to be treated as a Gaussian.
    """
    owner = NodeConfig.of(context.node_config)
    honest = shares.honest_shares(server_lies=owner.secagg_roster is not None)
    return _same_each_round(shared_noise_multiplier(terms.noise_scale, share.sensitivity, honest))


def _same_each_round(multiplier: float) -> float:
    """Round a multiplier down to fewer digits.

    Adaptive clipping moves the grids each round, and the multiplier by a rounding error. A ledger
    admits far more repetitions of one event than events that differ.
    """
    unit = 10.0 ** (math.floor(math.log10(multiplier)) - _DIGITS)
    return math.floor(multiplier / unit) * unit


def _event(multiplier: float, sampling_rate: float | None) -> PrivacyEvent:
    if sampling_rate is None:
        return GaussianEvent(noise_multiplier=multiplier)
    return PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=sampling_rate)
