"""Check of what commands send to the ServerApp."""

from __future__ import annotations

from fl_dp.app.cells import digest_of
from fl_dp.app.compose import compose_settings
from fl_dp.commands.jobs import Job


def require_sent(jobs: list[Job]) -> None:
    """Check that what is sent composes to the decided settings."""
    for job in jobs:
        assert digest_of(compose_settings(job.sent)) == digest_of(job.settings), job.sent
