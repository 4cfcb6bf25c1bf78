"""Sums that nobody sees the parts of: each node masks what it sends, and adds a share of the noise.

    phase 1   a train message a client: terms, then its masked, noised sum and shares of its seeds
    phase 1b  with a cross-check only: members sign who replied
    phase 2   a message a member: the shares that take the masks of the sum away, and no others
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fl_dp.accounting import PoissonSampling
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import DistributedNoise, PrivacyPlan
from fl_dp.protocol.instruction import RoundInstruction, SumInstruction
from fl_dp.protocol.secure_sum import (
    OPEN_ACTION,
    VIEW_ACTION,
    MemberQuestion,
    content_digest,
    masked_of,
    opened_of,
    signature_of,
    with_receipt,
    with_terms,
)
from fl_dp.secagg import OpenSum, Refused, SecureSumFailed, Segment, SumTerms
from fl_dp.secagg.masks import packed_bytes
from fl_dp.updates import RefusedUpdate, VectorLayout

from ..roster import Unit
from ..selection import Observation
from .base import Ask, Cohort, Mode, Released, RoundFailed
from .node_budget import budget_for_nodes
from .scalars import released_by
from .secure_setup import SecureSums

logger = logging.getLogger("flwr.fl_dp")

_SECONDS = 60.0  # for each of the later phases: members only compute for milliseconds
_DEVIATIONS = 6.0


class SecureSumMode(Mode):
    """A round whose sum is opened by a committee of nodes, with the noise already in it.

    Privacy: the server learns the noisy sum over at least as many clients as the plan supposes, and
    nothing else that depends on data. That sum is as private as one Gaussian of the round's noise
    multiplier, for one unit, against the server and the plan's colluding nodes.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        noise_multiplier: float,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        instruction: RoundInstruction,
        *,
        clipping_norms: tuple[float, ...],
        sums: SecureSums,
        number: int,
    ) -> None:
        """Prepare a round.

        Args:
            plan: The training's, with `DistributedNoise`.
            noise_multiplier: What the round is charged as.
            layout: Of the model that is sent.
            origin: That model, flattened.
            instruction: What every client is asked.
            clipping_norms: Those of this round.
            sums: Who has which keys.
            number: Of the sum in this training: larger than that of any sum before it.
        """
        assert isinstance(plan.noise, DistributedNoise)  # no other noise comes in shares
        self._shared = plan.shared_bundle(
            noise_multiplier, size=layout.size, clipping_norms=clipping_norms
        )
        coins = plan.hosting.coins_at_nodes and isinstance(plan.sampling, PoissonSampling)
        rate = plan.sampling.sampling_rate if coins else 1.0
        budget = budget_for_nodes(plan)
        super().__init__(
            layout,
            # All are told the same: a list of units would tell one node's message from another's.
            replace(
                instruction,
                bundle=self._shared.bundle,
                max_units=plan.hosting.units_per_node,
                sampling_rate=rate,
                secure_sum=SumInstruction(
                    rounds=plan.rounds,
                    epsilon=None if budget is None else budget.epsilon,
                    delta=None if budget is None else budget.delta,
                    neighboring_relation=str(plan.neighboring_relation),
                ),
            ),
        )
        self._plan, self._noise = plan, plan.noise
        self._rate = plan.sampling.sampling_rate if coins else None
        self._sums, self._number = sums, number
        self._places: dict[int, int] = {}
        self._content: tuple[RecordDict, RecordDict] | None = None
        self._sum: OpenSum | None = None

    @property
    def reads_models(self) -> bool:
        """Tell that replies are masked."""
        return False

    def reply_bytes(self, model: ArrayRecord) -> int:
        """Return the bytes of a masked message, without its seeds' shares."""
        return packed_bytes(self._shared.bits, sum(each.size for each in self._shared.segments))

    def open(self, cohort: Cohort, ask: Ask) -> None:
        """Make sure that everybody knows everybody's keys. See `Mode.open`."""
        self._sums.set_up(cohort, ask)
        self._places = self._sums.places(cohort)
        least = self._noise.shares.least
        if len(self._places) < least:
            raise RoundFailed(
                f"{len(self._places)} nodes of the cohort have keys, a sum needs {least}"
            )

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """Return the message of all clients: its terms bind everything else in it."""
        if self._content is None or self._content[0] is not content:
            told = self.told(content, self.instruction)
            terms = self._terms(content_digest(told))
            self._sum = OpenSum(terms, self._sums.known)
            self._content = content, with_terms(told, terms.to_json())
        receipt = self._sums.receipt_for(node)
        shared = self._content[1]
        return shared if receipt is None else with_receipt(shared, receipt)

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one masked message. See `Mode.fold`."""
        place = self._places.get(units[0].node)
        if place is None or self._sum is None:
            raise RefusedUpdate("its node has no keys")
        try:
            self._sum.fold(place, masked_of(content))
        except Refused as refused:
            raise RefusedUpdate(str(refused)) from None
        return []

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Let the committee open the sum. See `Mode.release`."""
        if self._sum is None:
            raise RoundFailed("nobody was asked")
        try:
            self._sum.require_openable()
            quorum = self._signed(self._sum, ask) if self._sum.terms.cross_check else {}
            self._opened(self._sum, quorum, ask)
            total = self._sum.release()
        except SecureSumFailed as failed:
            self._sums.leave_out(self._sum)
            raise RoundFailed(str(failed)) from failed
        self._sums.note(self._sum)
        updates, scalars = self._shared.decode(total)
        self._require_plausible(updates, repliers=len(self._sum.online))
        updates /= self._plan.denominator
        return released_by(self._plan, self._shared.bundle, updates, scalars)

    def _terms(self, content: str) -> SumTerms:
        shares, directory = self._noise.shares, self._sums.known
        return SumTerms(
            run=self._sums.run,
            number=self._number,
            purpose=MessageType.TRAIN,
            directory=directory.hash.hex(),
            content=content,
            cohort=tuple(sorted(self._places.values())),
            committee=self._sums.committee(shares.committee),
            threshold=shares.threshold,
            least=shares.least,
            degree=self._noise.degree,
            colluding=shares.colluding,
            cross_check=shares.cross_check,
            segments=tuple(
                Segment(each.name, each.size, each.scale, each.cap, each.clipping_norm)
                for each in self._shared.segments
            ),
            bits=self._shared.bits,
            noise_scale=self._shared.noise_scale,
            sampling_rate=self._rate,
            reply_after=self._noise.reply_after,
        )

    def _signed(self, open_sum: OpenSum, ask: Ask) -> dict[int, bytes]:
        """Return the signatures of members who have seen the same repliers."""
        signatures: dict[int, bytes] = {}
        for place, content in self._ask_members(VIEW_ACTION, open_sum, {}, ask):
            try:
                signatures[place] = signature_of(content)
            except ValueError:
                continue
            if len(signatures) == open_sum.terms.threshold:
                break
        return signatures

    def _opened(self, open_sum: OpenSum, quorum: dict[int, bytes], ask: Ask) -> None:
        """Ask members until enough of them have opened the sum."""
        for place, content in self._ask_members(OPEN_ACTION, open_sum, quorum, ask):
            try:
                open_sum.answer(place, opened_of(content))
            except (ValueError, Refused):
                logger.warning("A committee member's answer can't be read; the others have to do")
            if open_sum.enough:
                return

    def _ask_members(
        self, action: str, open_sum: OpenSum, quorum: dict[int, bytes], ask: Ask
    ) -> Iterator[tuple[int, RecordDict]]:
        """Put a question to every member, and yield each first answer that is no error."""
        place_of: dict[int, int] = {}
        messages: list[Message] = []
        for place in open_sum.terms.committee:
            node = self._sums.node_at(place)
            if node is None:
                continue
            place_of[node] = place
            question = open_sum.question(place)
            sent = MemberQuestion(
                terms=open_sum.terms.to_json(),
                online=question.online,
                labels=question.labels,
                bundles=question.bundles if action == OPEN_ACTION else {},
                quorum=quorum,
            )
            kind = f"{MessageType.QUERY}.{action}"
            messages.append(Message(sent.to_content(), dst_node_id=node, message_type=kind))
        for reply in ask(messages, _SECONDS):
            place = place_of.pop(reply.metadata.src_node_id, None)
            if place is not None and not reply.has_error():
                yield place, reply.content

    def _require_plausible(self, updates: NDArray[np.float64], *, repliers: int) -> None:
        """Refuse a sum that no clipped updates with such noise add up to: somebody sent rubbish."""
        std = self._shared.noise_scale * math.sqrt(repliers) / self._shared.segments[0].scale
        units = repliers * self._plan.hosting.units_per_node
        noise = std * (math.sqrt(updates.size) + _DEVIATIONS)
        if not np.linalg.norm(updates) <= units * self._shared.bundle.updates.clipping_norm + noise:
            raise RoundFailed("the sum is longer than clipped updates and noise can be")
