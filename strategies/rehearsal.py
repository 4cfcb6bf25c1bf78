"""A rehearsal before the first charge: nodes say what they will answer with; no data moves.

In one exchange of QUERY messages, nodes tell the names under which participations are counted, and
describe their apps, which are compared with the model and with what a training or a question needs.
What can't work is refused while nothing is spent. Plain Flower clients do not know the message:
only their answers will show whether they work.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict

from fl_dp.accounting.budget import Limit
from fl_dp.promise import Enforcement
from fl_dp.protocol.flower_compat import is_simulation
from fl_dp.protocol.introduction import LACKING, Ability, NodeIdentity
from fl_dp.protocol.message_keys import IDENTITY_ACTION, WIRE, WIRE_KEY
from fl_dp.protocol.own_grid import simulates_nodes
from fl_dp.updates import VectorLayout
from fl_dp.updates.arrays import is_floating

from .error_meanings import LEFTOVER_MODS, MOD_ADVICE, meaning_of
from .message_exchange import Federation, exchange, patience
from .node_answers import NO_SUCH_QUERY, Answers, RehearsalFailed

logger = logging.getLogger("flwr.fl_dp")

_ASKED_FIRST = 3
_MOST_LISTED = 5  # nodes that a line of the log names at most

_SAME_MODEL = "start from the arrays of the model that the clients train (initial_arrays)"
_EXHAUSTED = {
    Limit.CAP: "the node's own budget is exhausted: its owner's cap over all runs (dp-max-epsilon) "
    "has no room for a round, and it contributes nothing until its owner allows more",
    Limit.RUN: "the node's ledger has no room for a round within this training's own budget, "
    "which it has spent there: plan a larger one, or begin another training",
    Limit.NEIGHBOURS: "the node's data were charged for neighbours at half this plan's distance: "
    "plan for zero-out or add-or-remove-one",
}
_ENGINE_HEADING = "An exception was raised when processing a message"  # its text follows


def rehearse(
    federation: Federation,
    nodes: Sequence[int],
    *,
    config: Mapping[str, Any],
    needs: Collection[Ability],
    of_plain_apps: Collection[Ability] = (),
    layout: VectorLayout | None = None,
    everyone: Callable[[Answers], bool] = lambda answers: False,
    round_timeout: float | None = None,
) -> Answers:
    """Ask nodes who they are, before a training or a question is charged; refuse what can't work.

    Args:
        federation: The connected nodes.
        nodes: Nodes that are to take part.
        config: Config of the messages that will follow, as far as an owner may refuse it.
        needs: Abilities that every node's app needs.
        of_plain_apps: Those of them that a plain Flower app is taken to have, as it can't tell.
        layout: The training's model; None for a question.
        everyone: As for `ask_identities`.
        round_timeout: Seconds for which a round will wait; None: the federation's.

    Raises:
        RehearsalFailed: If a node can't contribute, or most do not; nothing was charged.
    """
    if round_timeout is None:
        round_timeout = federation.timeout
    answers = ask_identities(
        federation,
        nodes,
        config=ConfigRecord(dict(config)),
        everyone=everyone,
        round_timeout=round_timeout,
    )
    require_fit_answers(answers, layout, needs=needs, of_plain_apps=of_plain_apps)
    return answers


def ask_identities(
    federation: Federation,
    nodes: Sequence[int],
    *,
    config: ConfigRecord,
    everyone: Callable[[Answers], bool],
    round_timeout: float,
) -> Answers:
    """Ask nodes who they are, each once, and again if it is silent.

    Real nodes are all asked at once, and have the federation's `rehearsal_timeout` in all. In a
    simulation all run the same app: a few are asked first, and the others only if `everyone`
    returns true for these answers or one of these takes no part. Simulated nodes are waited for as
    by a patient `exchange`.
    """
    grid = federation.grid
    answers = Answers(
        timeout=patience(grid, federation.rehearsal_timeout),
        round_timeout=patience(grid, round_timeout),
        simulated=simulates_nodes(grid),
    )
    first = list(nodes[:_ASKED_FIRST]) if is_simulation(grid) else list(nodes)
    with _unknown_question_unlogged():
        _ask(federation, first, answers, config=config)
        if len(first) < len(nodes) and (everyone(answers) or _some_take_no_part(answers)):
            _ask(federation, list(nodes[len(first) :]), answers, config=config)
    return answers


def _some_take_no_part(answers: Answers) -> bool:
    return any(
        takes_no_part(identity, answers.round_timeout) for identity in answers.identities.values()
    )


@contextmanager
def _unknown_question_unlogged() -> Iterator[None]:
    """Keep what Flower's simulation engine says of a plain app's harmless answer off the log."""
    flower = logging.getLogger("flwr")

    def is_relevant(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return NO_SUCH_QUERY not in text and not text.startswith(_ENGINE_HEADING)

    flower.addFilter(is_relevant)
    try:
        yield
    finally:
        flower.removeFilter(is_relevant)


def _ask(
    federation: Federation, nodes: list[int], answers: Answers, *, config: ConfigRecord
) -> None:
    answers.asked += nodes
    content = RecordDict({"config": ConfigRecord({**config, WIRE_KEY: WIRE})})
    silent = set(nodes)

    def queries(to: Iterable[int]) -> list[Message]:
        kind = f"query.{IDENTITY_ACTION}"
        return [
            Message(content, dst_node_id=node, message_type=kind, ttl=answers.timeout)
            for node in sorted(to)
        ]

    replies = exchange(
        federation.grid,
        queries(nodes),
        window=federation.window,
        timeout=answers.timeout,
        remind=lambda: queries(silent),
        patient=True,
    )
    for reply in replies:
        node = reply.metadata.src_node_id
        if node not in silent:
            continue
        silent.discard(node)
        if reply.has_error():
            answers.errors[node] = reply.error
        else:
            configs = list(reply.content.config_records.values())
            answer = configs[0] if len(configs) == 1 else {}
            answers.identities[node] = NodeIdentity.from_config(answer)
        if not silent:
            return


def require_fit_answers(
    answers: Answers,
    layout: VectorLayout | None,
    *,
    needs: Collection[Ability],
    of_plain_apps: Collection[Ability],
) -> None:
    """Check answers against needs and the model, if any; log possible problems. See `rehearse`.

    Raises:
        RehearsalFailed: If a node can't contribute whatever its data are, or no node answers.
    """
    unable = set(answers.unable)
    for node, error in sorted(answers.errors.items()):
        meaning = meaning_of(error)
        if node in unable:
            continue
        if meaning is not None and meaning.lasting:
            raise RehearsalFailed(f"{answers.called(node)} can't take part: {meaning.text}")
        reason = "it failed, see its log" if meaning is None else meaning.text
        failed = f"{answers.called(node)} can't say what it will answer with: {reason}"
        if not answers.identities and not unable:
            raise RehearsalFailed(
                f"{failed}, and no node that was asked can: nothing was charged. Another installed "
                f"package may have the name of your app's{_traceback(answers, error)}"
            )
        logger.warning(failed)
    if answers.asked and len(answers.silent) == len(answers.asked):
        raise RehearsalFailed(
            f"none of the {len(answers.asked)} nodes that were asked answered within "
            f"{answers.timeout:.0f} s, which touches no data: nothing was charged. Look at their "
            "logs, or give them more time (roster_timeout)"
        )
    _require_wire(answers)
    _require_abilities(answers, needs, of_plain_apps)
    if layout is not None:
        for node, identity in sorted(answers.identities.items()):
            _require_fit(answers.called(node), identity, layout)
    if unable:
        shows, told = "and its arrays fit the model shows in training only", "its arrays"
        if layout is None:
            shows, told = "shows in its answers only", "its abilities"
        logger.warning(
            "The nodes' app can't say beforehand what it will answer with (it is a plain Flower "
            "ClientApp). Its errors 'No query function registered' are harmless. Whether it works "
            "%s, where a reply that does not fit counts as zero; numpy_client_app tells %s for "
            "free",
            shows,
            told,
        )
    if answers.silent:
        logger.warning(
            "%s did not answer within %.0f s, which touches no data: hung or slow nodes contribute "
            "zero, and the budget is charged all the same",
            _listed(answers, answers.silent),
            answers.timeout,
        )
    _require_enough(answers)
    _compare_versions(answers)


def _require_wire(answers: Answers) -> None:
    """Check that nodes' fl-dp speaks this server's version of the messages.

    Raises:
        RehearsalFailed: If one does not; nothing was charged.
    """
    from fl_dp import __version__  # the package's own, which imports this

    for node, identity in sorted(answers.identities.items()):
        if identity.wire in (None, WIRE):
            continue
        host, version = "the node", __version__
        if identity.wire > WIRE:
            host, version = "the server", identity.versions.get("fl-dp") or "the node's version"
        raise RehearsalFailed(
            f"{answers.called(node)} can't take part: its fl-dp "
            f"{identity.versions.get('fl-dp', '')} speaks version {identity.wire} of the messages, "
            f"and this server's {__version__} version {WIRE}. Install fl-dp {version} at {host} "
            "(docs/upgrades.md); nothing was charged"
        )


def takes_no_part(identity: NodeIdentity, round_timeout: float) -> str | None:
    """Why a node says that it contributes nothing; None if it does contribute."""
    if identity.answer_after is not None and identity.answer_after >= round_timeout:
        return (
            f"its gate answers after {identity.answer_after:g} s (dp-gate-answer-after), and is "
            f"waited for {round_timeout:g} s: write a longer timeout"
        )
    if identity.refuses:
        return "its owner does not allow this training, see its log"
    return None if identity.exhausted is None else _EXHAUSTED[identity.exhausted]


def require_gates_at_all_or_none(answers: Answers) -> None:
    """Check that the nodes of a secure sum are all behind gates, or none.

    Only a gate computes its app's hash, which goes into the masks: with another node they don't
    cancel.

    Raises:
        RehearsalFailed: Some have no gate; nothing was charged.
    """
    identities = answers.identities
    gated = {node for node in identities if Enforcement.APP not in answers.enforcements([node])}
    others = sorted(identities.keys() - gated)
    if gated and others:
        raise RehearsalFailed(
            f"{_listed(answers, others)}: there is no gate here, and {len(gated)} nodes of the sum "
            "have one, which adds up what one app's bundle trains: put a gate at each node or at "
            "none; nothing was charged"
        )


def _require_enough(answers: Answers) -> None:
    """Name nodes that take no part, or pay for a part of it, as far as owners let them tell.

    Raises:
        RehearsalFailed: If most that answered refuse or can't pay, or none takes part. A plain
            Flower client can't tell, and is taken to take part.
    """
    reasons: dict[str, list[int]] = {}
    for node, identity in sorted(answers.identities.items()):
        reason = takes_no_part(identity, answers.round_timeout)
        if reason is not None:
            reasons.setdefault(reason, []).append(node)
    absent = sum(map(len, reasons.values()))
    answered = len(answers.identities) + len(answers.unable)
    lines = [f"{_listed(answers, nodes)}: {reason}" for reason, nodes in reasons.items()]
    if 2 * absent > answered:
        raise RehearsalFailed(
            f"{absent} of the {answered} nodes that answered take no part: nothing "
            f"was charged. Plan for those that do, or ask the owners. {'; '.join(lines)}"
        )
    for line in lines:
        logger.warning(line)
    if short := [node for node, identity in answers.identities.items() if identity.falls_short]:
        logger.warning(
            "%s: the node's own budget pays for a part of this training's rounds; it contributes "
            "nothing to the others",
            _listed(answers, short),
        )


def _traceback(answers: Answers, error: Error) -> str:
    """A simulated node's traceback; nothing of a real one's."""
    text = (error.reason or "").partition("\n")[2]
    return f". Its client app raised:\n{text}" if answers.simulated and text else ""


def _require_abilities(
    answers: Answers, needs: Collection[Ability], of_plain_apps: Collection[Ability]
) -> None:
    """Compare each app's abilities with what is needed.

    Raises:
        RehearsalFailed: If one lacks something; nothing was charged.
    """
    plain = NodeIdentity(abilities=frozenset(of_plain_apps))
    stated = dict.fromkeys(answers.unable, plain) | answers.identities
    for node, identity in sorted(stated.items()):
        for ability, lacking in LACKING.items():
            if ability in needs and ability not in identity.abilities:
                raise RehearsalFailed(
                    f"{answers.called(node)} can't take part: {lacking}; nothing was charged"
                )


def _require_fit(node: str, identity: NodeIdentity, layout: VectorLayout) -> None:
    for mod in identity.mods:
        if mod in LEFTOVER_MODS:
            raise RehearsalFailed(f"{node} can't take part: it has {mod}; {MOD_ADVICE}")
    if identity.failed:
        raise RehearsalFailed(
            f"{node} can't make its model: its arrays_fn failed ({identity.failed}), see its log"
        )
    if identity.arrays is None:
        return
    for spec in layout.released:
        if spec.name not in identity.arrays:
            raise RehearsalFailed(
                f"{node} will answer without the model's array '{spec.name}': {_SAME_MODEL}"
            )
        shape, dtype = identity.arrays[spec.name]
        if shape != spec.shape or not is_floating(dtype):
            raise RehearsalFailed(
                f"{node} will answer with array '{spec.name}' as {dtype[:20]} of shape {shape}, "
                f"and the model has {spec.form.declared} of shape {spec.shape}: {_SAME_MODEL}"
            )
    released = {spec.name for spec in layout.released}
    if identity.trained is not None and identity.trained != released:
        kept, moved = sorted(released - identity.trained), sorted(identity.trained - released)
        wrong = (
            f"does not train '{kept[0]}', which would get noise"
            if kept
            else (f"trains '{moved[0]}', which is not released")
        )
        raise RehearsalFailed(
            f"{node} {wrong}: give the plan, or with_budget, the names that are trained: "
            "trained=fl_dp.clients.trained_names(module)"
        )
    foreign = identity.arrays.keys() - released - layout.server_only
    if foreign:
        raise RehearsalFailed(
            f"{node} will answer with {len(foreign)} arrays that the model does not have: "
            f"{_SAME_MODEL}"
        )


def _compare_versions(answers: Answers) -> None:
    """Warn of nodes with another fl-dp than most."""
    versions: dict[int, str] = {}
    for node, identity in answers.identities.items():
        if "fl-dp" in identity.versions:  # a node may write anything
            versions[node] = identity.versions["fl-dp"]
    counts = Counter(versions.values())
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        others = [node for node, version in versions.items() if version != usual]
        logger.warning(
            "%s: another version of fl-dp (%s) than the others (%s)",
            _listed(answers, others),
            versions[others[0]],
            usual,
        )


def _listed(answers: Answers, nodes: Sequence[int]) -> str:
    """Nodes by name, at most five."""
    more = f" and {len(nodes) - _MOST_LISTED} more" if len(nodes) > _MOST_LISTED else ""
    listed = ", ".join(answers.called(node) for node in nodes[:_MOST_LISTED])
    return f"{listed[:1].upper()}{listed[1:]}{more}"
