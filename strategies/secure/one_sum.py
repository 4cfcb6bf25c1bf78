"""One secure sum over some nodes, whatever its content.

phase 1   a message a client: terms, then its masked, noised sum and shares of its seeds
phase 1b  with a cross-check only: members sign who replied
phase 2   a message a member: the shares that remove the masks of the sum, and no others
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from numpy.typing import NDArray

from fl_dp.mechanisms import NoiseShare
from fl_dp.plan import DistributedNoise
from fl_dp.protocol.secure_sum_messages import (
    OPEN_ACTION,
    VIEW_ACTION,
    MemberQuestion,
    content_digest,
    masked_of,
    member_signature,
    opened_of,
    with_terms,
)
from fl_dp.secagg import OpenSum, Refused, SecureSumFailed, SumTerms
from fl_dp.secagg.masks import packed_bytes
from fl_dp.updates import RefusedUpdate

from ..message_exchange import Ask
from .setup import SecureSums

logger = logging.getLogger("flwr.fl_dp")

_SECONDS = 60.0  # for each of the later phases: members only compute for milliseconds
_DEVIATIONS = 6.0


@dataclass(frozen=True, kw_only=True)
class Summed:
    """The content of a sum, as its terms declare it.

    Attributes:
        purpose: Type of the messages that ask for it.
        share: Share of the noise that each node adds, and the encoding of its values.
        bits: Each coordinate is summed modulo 2^bits.
        sampling_rate: Rate of each unit's coin at its node; None if all units take part.
        units_in_sum: Most units of one node.
    """

    purpose: str
    share: NoiseShare
    bits: int
    sampling_rate: float | None = None
    units_in_sum: int = 1


class OneSum:
    """A sum from its terms to its total.

    Privacy: the server learns the noisy sum over at least as many nodes as the noise supposes, and
    nothing else that depends on data.
    """

    def __init__(
        self, sums: SecureSums, noise: DistributedNoise, summed: Summed, *, number: int
    ) -> None:
        """Prepare; `number` is larger than any earlier sum's in this training."""
        self._sums, self._noise, self._summed, self._number = sums, noise, summed, number
        self._positions: dict[int, int] = {}
        self._sum: OpenSum | None = None
        self._bound: tuple[RecordDict, RecordDict] | None = None

    def open(self, nodes: Iterable[int], ask: Ask) -> None:
        """Take note of the nodes, and let all know each other's keys.

        Raises:
            SecureSumFailed: If too few have keys, or more than the charged noise is for.
        """
        asked, planned = list(nodes), self._noise.shares
        self._sums.set_up(self._sums.allowed(asked, planned.least), ask)
        # Only now is the identity known of a node that came back under another id.
        self._sums.require_left(asked, planned.least)
        self._positions = self._sums.positions(self._sums.allowed(asked, planned.least))
        if len(self._positions) < planned.least:
            raise SecureSumFailed(
                f"{len(self._positions)} of {len(asked)} nodes have keys, and a sum needs "
                f"{planned.least}"
            )
        # Fewer nodes than planned leave less room for lies; more would leave more of it.
        if len(self._positions) > planned.cohort:
            raise SecureSumFailed(
                f"{len(self._positions)} nodes can't be kept from opening a smaller sum than was "
                f"charged, which is for {planned.cohort} nodes"
            )
        self._sums.require_committee(planned)

    def content_for(self, content: RecordDict) -> RecordDict:
        """Every node's message: the given content, and terms that bind it."""
        if self._bound is None or self._bound[0] is not content:
            terms = self._terms(content_digest(content))
            self._sum = OpenSum(terms, self._sums.known_directory)
            self._bound = content, with_terms(content, terms.to_json())
        return self._bound[1]

    def fold(self, node: int, content: RecordDict) -> None:
        """Add one node's masked message.

        Raises:
            RefusedUpdate: If it is none; then nothing was added.
        """
        position = self._positions.get(node)
        if position is None or self._sum is None:
            raise RefusedUpdate("its node has no keys")
        try:
            longest = packed_bytes(self._sum.terms.bits, self._sum.terms.size)
            self._sum.fold(position, masked_of(content, longest=longest))
        except Refused as refused:
            raise RefusedUpdate(str(refused)) from None

    def total(self, ask: Ask) -> list[NDArray[np.float64]]:
        """Let the committee open the sum, once; return one array per segment.

        Raises:
            SecureSumFailed: If it can't be opened, or is longer than clipped values and noise can
                be.
        """
        opened = self._sum
        if opened is None:
            raise SecureSumFailed("nobody was asked")
        try:
            opened.require_openable()
            if opened.terms.cross_check:
                self._agree(opened, ask)
            self._ask_to_open(opened, ask)
            total = opened.release()
        finally:
            self._sums.leave_out(opened)
        values = self._summed.share.decode(total)
        self._require_plausible(values, repliers=len(opened.online))
        return values

    def _terms(self, content: str) -> SumTerms:
        shares, summed = self._noise.shares, self._summed
        return SumTerms(
            run=self._sums.run,
            number=self._number,
            purpose=summed.purpose,
            directory=self._sums.known_directory.hash.hex(),
            content=content,
            cohort=tuple(sorted(self._positions.values())),
            committee=self._sums.committee(shares.committee),
            threshold=shares.threshold,
            least=shares.least,
            degree=self._noise.secure_sum.neighbours(self._noise.nodes),
            colluding=shares.colluding,
            cross_check=shares.cross_check,
            segments=summed.share.segments,
            bits=summed.bits,
            noise_scale=summed.share.noise_scale,
            sampling_rate=summed.sampling_rate,
            reply_after=self._noise.secure_sum.reply_after,
            promised=shares.honest_shares(server_lies=True),
            rotated=summed.share.rotated,
        )

    def _agree(self, opened: OpenSum, ask: Ask) -> None:
        """Let members sign who replied, until enough have."""
        for position, content in self._ask_members(VIEW_ACTION, opened, ask):
            try:
                opened.sign(position, member_signature(content))
            except ValueError:
                continue
            if opened.has_quorum:
                return

    def _ask_to_open(self, opened: OpenSum, ask: Ask) -> None:
        """Ask members until enough have opened the sum."""
        for position, content in self._ask_members(OPEN_ACTION, opened, ask):
            try:
                opened.answer(position, opened_of(content))
            except ValueError:
                logger.warning("A committee member's answer can't be read: the others have to do")
            if opened.enough:
                return

    def _ask_members(
        self, action: str, opened: OpenSum, ask: Ask
    ) -> Iterator[tuple[int, RecordDict]]:
        """Ask every member, and yield each first answer without error."""
        position_of: dict[int, int] = {}
        messages: list[Message] = []
        text, opens = opened.terms.to_json(), action == OPEN_ACTION
        quorum = opened.view_signatures if opens and opened.terms.cross_check else {}
        for position in opened.terms.committee:
            node = self._sums.node_at(position)
            if node is None:
                continue
            position_of[node] = position
            question = opened.question(position)
            bundles = question.bundles if opens else {}
            sent = MemberQuestion(
                terms=text,
                online=question.online,
                labels=question.labels,
                bundles=bundles,
                quorum=quorum,
            )
            kind = f"{MessageType.QUERY}.{action}"
            messages.append(Message(sent.to_content(), dst_node_id=node, message_type=kind))
        for reply in ask(messages, _SECONDS):
            member = position_of.pop(reply.metadata.src_node_id, None)
            if member is not None and not reply.has_error():
                yield member, reply.content

    def _require_plausible(self, values: list[NDArray[np.float64]], *, repliers: int) -> None:
        """Check that a sum is no longer than clipped values and their noise can be.

        Raises:
            SecureSumFailed: If it is: some message is wrong.
        """
        share, units = self._summed.share, repliers * self._summed.units_in_sum
        # In steps of the grid: coordinates, length, and the most that a unit lengthens it by.
        sums = [
            (
                segment.size,
                float(np.linalg.norm(total)) * segment.scale,
                segment.scale * segment.clipping_norm,
            )
            for segment, total in zip(share.segments, values, strict=True)
        ]
        if share.rotated:  # cutting shortens what was one vector
            sizes, lengths, norms = zip(*sums, strict=True)
            sums = [(sum(sizes), math.hypot(*lengths), math.hypot(*norms))]
        for size, length, norm in sums:
            # Noise of r nodes has deviation sigma sqrt(r); its norm is about that times sqrt(d).
            noise = share.noise_scale * math.sqrt(repliers)
            noise *= math.sqrt(size) + _DEVIATIONS
            if not length <= units * norm + noise:
                raise SecureSumFailed("the sum is longer than clipped values and noise can be")
