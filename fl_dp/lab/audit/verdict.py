"""Verdicts of audits: what is claimed, what was shown, and what would have been noticed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One test of one claim.

    Attributes:
        name: What was played or measured.
        claim: Epsilon that is claimed; None where the test has no epsilon of its own.
        bounds: Lower bounds on it by the name of their method, together wrong with at most `alpha`.
        delta: Of claim and bounds.
        alpha: Probability that a claim that holds is accused.
        caught: Whether something was found that contradicts the claim in another way.
        seen: One line on what was observed.
        power: One line on which violation would have been noticed.
    """

    name: str
    alpha: float
    claim: float | None = None
    delta: float | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    caught: bool = False
    seen: str = ""
    power: str = ""

    @property
    def bound(self) -> float | None:
        """The largest of the bounds, None if there is none."""
        return max(self.bounds.values(), default=None)

    @property
    def stands(self) -> bool:
        """Whether nothing contradicts the claim."""
        if self.caught:
            return False
        return self.claim is None or self.bound is None or not self.bound > self.claim

    @property
    def share(self) -> float | None:
        """The bound over the claim: what of the claimed privacy loss was really shown."""
        if self.claim is None or self.bound is None or math.isinf(self.bound):
            return None
        return self.bound / self.claim if 0.0 < self.claim < math.inf else None

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name,
            "verdict": "stands" if self.stands else "violated",
            "claim": self.claim,
            "delta": self.delta,
            "lower_bound": self.bound,
            "bounds": dict(self.bounds),
            "share_of_claim": self.share,
            "confidence": 1.0 - self.alpha,
            "seen": self.seen,
            "power": self.power,
        }


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Findings about one subject.

    Attributes:
        subject: What was audited.
        findings: In the order of the tests.
        notes: What a reader has to know besides.
        estimates: Numbers that are no bounds, by name.
    """

    subject: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    estimates: Mapping[str, float] = field(default_factory=dict)

    @property
    def stands(self) -> bool:
        """Whether no finding contradicts its claim."""
        return all(finding.stands for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "subject": self.subject,
            "verdict": "stands" if self.stands else "violated",
            "findings": [finding.to_dict() for finding in self.findings],
            "estimates": dict(self.estimates),
            "notes": list(self.notes),
        }
