"""What a command says while something takes long."""

from __future__ import annotations

import logging

import pytest

from fl_dp.commands.console import doing, redirected_log


def test_what_takes_long_says_how_far_it_is_in_lines_of_its_own(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("flwr.fl_dp.tried")
    with doing("encoding the records", plainly=True) as say, redirected_log(logger, say):
        logger.info("%d of %d", 30, 70)
        assert caplog.messages == []  # on a terminal it would break the line
    assert capsys.readouterr().err == "encoding the records\nencoding the records: 30 of 70\n"
    assert logger.propagate and not logger.handlers
