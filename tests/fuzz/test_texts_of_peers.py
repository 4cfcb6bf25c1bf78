"""Texts that cross the wire, as a hostile peer writes them: read, or refused by the one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import pytest
from hostile import VALUES, cases, changed, text_of
from record_plans import record_plan
from secure_sums import CONTENT, PURPOSE, RUN, Federation

from fl_dp.app.settings import Settings
from fl_dp.codec import decode_text, encode_text
from fl_dp.mechanisms import GaussianBundle
from fl_dp.mechanisms.bundle import ScalarMetric
from fl_dp.plan import RecordPlan
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction, SumInstruction
from fl_dp.protocol.introduction import NodeIdentity, forms_from_json
from fl_dp.secagg import Directory, Refused, SumTerms
from fl_dp.secagg.directory import Entry
from fl_dp.statistics import Frequencies, Histogram, Mean, Quantiles
from fl_dp.statistics.wire import query_from_json
from fl_dp.updates import Compression

FEDERATION = Federation.of(4, pinned=True)
TERMS = FEDERATION.terms()
PLAN = record_plan(epsilon=3.0, noise_multiplier=1.0, sampling_rate=0.1, steps=10, participations=2)
INSTRUCTION = RoundInstruction(
    server_round=3,
    units=(0, 2),
    max_units=4,
    bundle=GaussianBundle(
        noise_multiplier=1.0,
        clipping_norms=(1.0,),
        metrics=(ScalarMetric(name="loss", low=0.0, high=1.0),),
        scalar_noise_std=9.0,
    ),
    weight_cap=20.0,
    utility="loss",
    client_noise=NoiseInstruction(scheme="gaussian", noise_multiplier=1.0, clipping_norm=1.0),
    compression=Compression(up="quantize"),
    secure_sum=SumInstruction(rounds=3, epsilon=2.0, delta=1e-5),
)


@dataclass(frozen=True)
class Text:
    """A text that somebody else writes: an example, its reader, and all that the reader raises."""

    example: str
    read: Callable[[str], object]
    errors: tuple[type[Exception], ...] = (ValueError,)


def _checked_directory(text: str) -> None:
    Directory.from_json(text).check()


def _statistic(text: str) -> None:
    query = query_from_json(text)
    assert query.dimension > 0 and query.l2_sensitivity > 0


TEXTS = {
    "terms of a sum": Text(TERMS.to_json(), SumTerms.from_json),
    "directory": Text(FEDERATION.directory.to_json(), _checked_directory),
    "entry of a directory": Text(
        json.dumps(FEDERATION.directory.entries[0].to_dict()),
        lambda text: Entry.from_json(text).check(RUN),
    ),
    "round instruction": Text(encode_text(INSTRUCTION), RoundInstruction.from_json),
    "sum instruction": Text(
        encode_text(SumInstruction(rounds=3, epsilon=2.0)),
        partial(decode_text, SumInstruction),
    ),
    "bundle": Text(encode_text(INSTRUCTION.bundle), partial(decode_text, GaussianBundle)),
    "plan of DP-SGD": Text(encode_text(PLAN), partial(decode_text, RecordPlan)),
    "forms of arrays": Text('{"w": [[3, 2], "float32"]}', forms_from_json),
    "settings": Text(Settings().to_json(), Settings.from_json),
    **{
        f"query {query.kind}": Text(encode_text(query), _statistic)
        for query in (
            Mean(lows=(0.0,), highs=(9.0,)),
            Histogram(edges=(0.0, 1.0, 2.0)),
            Frequencies(categories=("a", "b")),
            Quantiles(probabilities=(0.25, 0.5), grid=(0.0, 1.0, 2.0)),
        )
    },
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_example_is_read(name: str) -> None:
    TEXTS[name].read(TEXTS[name].example)


def test_a_round_instruction_survives_its_text() -> None:
    assert RoundInstruction.from_json(encode_text(INSTRUCTION)) == INSTRUCTION


@pytest.mark.parametrize("name", TEXTS)
@cases(120)
def test_a_text_of_a_peer_is_read_or_refused_by_the_documented_error(
    name: str, rng: Random
) -> None:
    text = TEXTS[name]
    with suppress(*text.errors):
        text.read(text_of(json.loads(text.example), rng))


@cases(200)
def test_an_introduction_is_read_whatever_it_says(rng: Random) -> None:
    config: dict[str, Any] = dict(
        NodeIdentity(
            name="north",
            app="app",
            versions={"numpy": "2"},
            mods=("mod",),
            arrays={"w": ((3,), "float32")},
        ).to_config()
    )
    config["fl-dp-about"] = text_of(json.loads(str(config["fl-dp-about"])), rng)
    config["name"] = rng.choice(("north", *map(str, VALUES)))
    introduced = NodeIdentity.from_config(config)
    assert introduced.name.isprintable() and len(introduced.name) <= 200


@cases(200)
def test_a_node_masks_for_no_terms_but_those_that_hold(rng: Random) -> None:
    """What `begin` takes in is, letter by letter, canonical: of its own run, purpose, content."""
    text = json.dumps(changed(json.loads(TERMS.to_json()), rng), sort_keys=True)
    text = text.replace(": ", ":").replace(", ", ",")
    node = FEDERATION.nodes[1]
    try:
        part = node.begin(text, content=CONTENT, purpose=PURPOSE)
    except (Refused, ValueError):
        return
    assert part is None or SumTerms.from_json(text).content == CONTENT
