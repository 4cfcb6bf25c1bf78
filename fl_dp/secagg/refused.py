"""The one error of a node that does not do what it was asked; nothing secret left it."""

from __future__ import annotations

from typing import Literal, get_args

RefusalCode = Literal[
    "stale", "terms", "directory", "policy", "view", "thin", "quorum", "budget", "late"
]
"""Why a node refuses: all that the server is told."""

REFUSAL_CODES: tuple[str, ...] = get_args(RefusalCode)


class Refused(Exception):
    """A request that a node does not answer.

    Attributes:
        code: Why, in one word that may travel. The text is for the node's owner; neither depends on
            data.
    """

    def __init__(self, code: RefusalCode, text: str) -> None:
        """Say why.

        Args:
            code: See `RefusalCode`.
            text: What was wrong, and what would be right.
        """
        super().__init__(text)
        self.code: RefusalCode = code
