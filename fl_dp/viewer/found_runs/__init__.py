"""Folders of runs as somebody finds them: read without trust in what wrote them.

    >>> runs = RunsFolder(Path("runs"))
    >>> [card.name for card in runs.listing().cards]
    ['20261122-101500-digits', '20261122-113000-privacy_levels/run-0']
    >>> runs.read("20261122-101500-digits").rounds[-1].test_accuracy
    0.93

A folder may come from a stranger, be half written, or belong to something else. So no link is
followed below the folder that was named, nothing is read without a bound, what can't be read is
said and left out, and no number that leaves this room is infinite or NaN. It knows no framework and
loads in milliseconds.
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .attacks import FoundAttack, attacks_in, is_attack, read_attack
    from .details import FoundRun
    from .follow import Followed, ReadPosition
    from .images import IMAGES, Image, images_of, read_image
    from .ledgers import FoundLedger, ledgers_in
    from .log_tail import FollowedLog, follow_log
    from .rounds import Round, thinned
    from .runs_folder import Listing, RunsFolder, read_run
    from .states import RunCard, RunState
    from .untrusted import number
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "IMAGES",
    "Followed",
    "FollowedLog",
    "FoundAttack",
    "FoundLedger",
    "FoundRun",
    "Image",
    "Listing",
    "ReadPosition",
    "Round",
    "RunCard",
    "RunState",
    "RunsFolder",
    "attacks_in",
    "follow_log",
    "images_of",
    "is_attack",
    "ledgers_in",
    "number",
    "read_attack",
    "read_image",
    "read_run",
    "thinned",
]
