"""Messages of secure sums: what their digest binds, and that they survive Flower's wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fl_dp.protocol.secure_sum_messages import (
    MemberQuestion,
    content_digest,
    masked_of,
    masked_to_content,
    member_signature,
    opened_of,
    opened_to_content,
    signature_to_content,
    terms_in,
    text_of,
    text_to_content,
    with_terms,
    without_terms,
)
from fl_dp.secagg.client import MaskedMessage
from fl_dp.secagg.member import Opened
from fl_dp.updates import RefusedUpdate


def content_of(
    *, arrays: dict[str, Any] | None = None, config: dict[str, Any] | None = None
) -> RecordDict:
    values = {"a": np.arange(6.0), "b": np.zeros((2, 3))} if arrays is None else arrays
    given: dict[str, Any] = {"lr": 0.1, "epochs": 2, "name": "x", "flags": [True, False]}
    return RecordDict(
        {
            "arrays": ArrayRecord({name: Array(each) for name, each in values.items()}),
            "config": ConfigRecord(given | (config or {})),
            "metrics": MetricRecord({"m": 1.5}),
        }
    )


def wired(content: RecordDict) -> RecordDict:
    """The content as it arrives."""
    return recorddict_from_proto(recorddict_to_proto(content))


def test_the_digest_is_the_same_after_the_wire() -> None:
    assert content_digest(content_of()) == content_digest(wired(content_of()))


def test_terms_are_not_in_it() -> None:
    told = with_terms(content_of(), "terms")
    assert content_digest(told) == content_digest(content_of())
    assert content_digest(without_terms(told)) == content_digest(content_of())
    assert terms_in(told) == "terms"
    assert terms_in(content_of()) is None


@pytest.mark.parametrize(
    "changed",
    [
        content_of(config={"lr": np.nextafter(0.1, 1)}),
        content_of(config={"epochs": 2.0}),
        content_of(config={"epochs": True}),
        content_of(config={"flags": [True, True]}),
        content_of(config={"name": b"x"}),
        content_of(config={"more": 1}),
        content_of(arrays={"b": np.zeros((2, 3)), "a": np.arange(6.0)}),  # read in another order
        content_of(arrays={"a": np.arange(6.0), "b": np.zeros((3, 2))}),
        content_of(arrays={"a": np.arange(6.0, dtype=np.float32), "b": np.zeros((2, 3))}),
        content_of(arrays={"a": np.arange(6.0) + 1e-12, "b": np.zeros((2, 3))}),
        RecordDict(dict(content_of()) | {"more": ConfigRecord({"x": 1})}),
        RecordDict({"arrays": content_of()["arrays"], "config": content_of()["config"]}),
    ],
)
def test_whatever_else_differs_changes_it(changed: RecordDict) -> None:
    assert content_digest(changed) != content_digest(content_of())


def test_terms_that_are_no_text_are_refused() -> None:
    content = content_of()
    content["fl-dp-secure-sum"] = ConfigRecord({"terms": 1})
    with pytest.raises(ValueError, match="no text of terms"):
        terms_in(content)


def test_every_message_survives_the_wire() -> None:
    masked = MaskedMessage(masked=b"\x00\x01\xff", bundles=[b"a", b"bc"], commitments=b"c" * 32)
    assert masked_of(wired(masked_to_content(masked)), longest=100) == masked
    opened = Opened(shares={3: b"x", 5: b"yz"}, unreadable=(7,))
    assert opened_of(wired(opened_to_content(opened))) == opened
    nothing = Opened(shares={})
    assert opened_of(wired(opened_to_content(nothing))) == nothing
    question = MemberQuestion(
        terms="t", online=(2, 4), labels={2: b"p", 4: b"q"}, bundles={2: b"m", 4: b"n"}, quorum={}
    )
    assert MemberQuestion.from_content(wired(question.to_content())) == question
    assert member_signature(wired(signature_to_content(b"s"))) == b"s"
    assert text_of(wired(text_to_content("hello"))) == "hello"


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        content_of(),
        RecordDict({"masked": ArrayRecord({"masked": Array(np.zeros(3, np.uint8))})}),
        RecordDict(
            {
                "masked": ArrayRecord({"masked": Array(np.zeros(3))}),
                "bundles": ConfigRecord({"bundles": [b"a"], "commitments": b"c"}),
            }
        ),
        RecordDict(
            {
                "masked": ArrayRecord({"masked": Array(np.zeros(3, np.uint8))}),
                "bundles": ConfigRecord({"bundles": b"a", "commitments": b"c"}),
            }
        ),
    ],
)
def test_other_replies_are_refused(content: RecordDict) -> None:
    with pytest.raises(RefusedUpdate):
        masked_of(content, longest=100)
