"""Verdicts of audits: the claim, what was shown, what would have been noticed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from fl_dp.guarantee import Guarantee
from fl_dp.terminal.sheets import sheet


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One test of one claim.

    Attributes:
        alpha: Probability that a claim that holds is accused.
        claim: Claimed epsilon; None where the test has none of its own.
        delta: Delta of claim and bounds.
        bounds: Lower bounds on epsilon by method, together wrong with at most `alpha`.
        caught: Whether something else contradicts the claim.
        observed: One line on what was observed.
        power: One line on which violation would have been noticed.
    """

    name: str
    alpha: float
    claim: float | None = None
    delta: float | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    caught: bool = False
    observed: str = ""
    power: str = ""

    @property
    def bound(self) -> float | None:
        """The largest bound, None without any."""
        return max(self.bounds.values(), default=None)

    @property
    def stands(self) -> bool:
        """Whether nothing contradicts the claim."""
        if self.caught:
            return False
        return self.claim is None or self.bound is None or not self.bound > self.claim

    @property
    def share(self) -> float | None:
        """The bound over the claim, the shown part of the claimed loss; None if undefined."""
        if self.claim is None or self.bound is None or math.isinf(self.bound):
            return None
        if not 0.0 < self.claim < math.inf:
            return None
        return self.bound / self.claim

    @property
    def verdict(self) -> str:
        """`stands` or `violated`."""
        return "stands" if self.stands else "violated"

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "claim": self.claim,
            "delta": self.delta,
            "lower_bound": self.bound,
            "bounds": dict(self.bounds),
            "share_of_claim": self.share,
            "confidence": 1.0 - self.alpha,
            "seen": self.observed,
            "power": self.power,
        }


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Findings about one subject.

    Attributes:
        subject: Name of what was audited.
        findings: Findings in the order of the tests.
        notes: Further lines for the reader.
        estimates: Numbers that are no bounds, by name.
        promise: Delta, unit, neighbours and adversary of every claim and bound; None: unknown.
    """

    subject: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    estimates: Mapping[str, float] = field(default_factory=dict)
    promise: Guarantee | None = None

    @property
    def stands(self) -> bool:
        """Whether no finding contradicts its claim."""
        return all(finding.stands for finding in self.findings)

    @property
    def verdict(self) -> str:
        """`stands` or `violated`."""
        return "stands" if self.stands else "violated"

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "subject": self.subject,
            "promise": None if self.promise is None else self.promise.to_dict(),
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
            "estimates": dict(self.estimates),
            "notes": list(self.notes),
        }


def audit_table(report: AuditReport) -> Table:
    """One row per test."""
    numbers = ("claim", "lower bound", "of it", "confidence")
    rows = []
    for finding in report.findings:
        share = finding.share
        verdict, style = ("stands", "") if finding.stands else ("VIOLATED", "red")
        cells = (
            finding.name,
            _number(finding.claim),
            _number(finding.bound),
            "" if share is None else f"{share:.0%}",
            confidence(finding.alpha),
            verdict,
        )
        rows.append([Text(cell, style=style) for cell in cells])
    title = f"Audit of {report.subject}"
    if report.promise is not None:
        title += f": epsilon {report.promise.terms}"
    return sheet(title, ("test", *numbers, "verdict"), rows, numbers=numbers)


def audit_lines(report: AuditReport) -> list[str]:
    """The lines below the table."""
    lines = []
    for finding in report.findings:
        sentences = filter(None, (finding.observed, finding.power))
        lines.append(f"{_which(finding)}: {'; '.join(sentences)}")
    lines += [f"{name}: {value:.4g}" for name, value in report.estimates.items()]
    lines += list(report.notes)
    violated = [finding.name for finding in report.findings if not finding.stands]
    if violated:
        lines.append(f"VIOLATED: {'; '.join(violated)}")
    else:
        lines.append(
            "Nothing contradicts the claim. An audit finds violations; it proves no privacy."
        )
    return lines


def confidence(alpha: float) -> str:
    """`1 - alpha` with the digits it needs."""
    digits = max(2, math.ceil(-math.log10(alpha) - 1e-9))
    return f"{1.0 - alpha:.{digits}f}"


def _which(finding: Finding) -> str:
    bounds = ", ".join(f"{name} {value:.3g}" for name, value in finding.bounds.items())
    return f"{finding.name} ({bounds})" if bounds else finding.name


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
