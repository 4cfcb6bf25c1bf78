"""Audit as a table and as lines: claim, what was shown of it, what would have been noticed."""

from __future__ import annotations

import math

from rich.table import Table

from fl_dp.lab.audit.verdict import AuditReport, Finding


def audit_table(report: AuditReport) -> Table:
    """Return one row for each test."""
    table = Table(title=f"Audit of {report.subject}", title_justify="left")
    table.add_column("test")
    for column in ("claim", "lower bound", "of it", "confidence"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for finding in report.findings:
        share = finding.share
        table.add_row(
            finding.name,
            _number(finding.claim),
            _number(finding.bound),
            "" if share is None else f"{share:.0%}",
            confidence(finding.alpha),
            "stands" if finding.stands else "VIOLATED",
            style=None if finding.stands else "red",
        )
    return table


def audit_lines(report: AuditReport) -> list[str]:
    """Return what stands below the table."""
    lines = [
        f"{_which(each)}: {'; '.join(filter(None, (each.seen, each.power)))}"
        for each in report.findings
    ]
    lines += [f"{name}: {value:.4g}" for name, value in report.estimates.items()]
    lines += list(report.notes)
    violated = [finding.name for finding in report.findings if not finding.stands]
    lines.append(
        f"VIOLATED: {'; '.join(violated)}"
        if violated
        else "Nothing contradicts the claim. An audit finds violations; it proves no privacy."
    )
    return lines


def confidence(alpha: float) -> str:
    """Return `1 - alpha` with as many digits as it needs."""
    digits = max(2, math.ceil(-math.log10(alpha) - 1e-9))
    return f"{1.0 - alpha:.{digits}f}"


def _which(finding: Finding) -> str:
    bounds = ", ".join(f"{name} {value:.3g}" for name, value in finding.bounds.items())
    return f"{finding.name} ({bounds})" if bounds else finding.name


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
