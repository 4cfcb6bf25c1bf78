"""The app: settings, the server's and the clients' part of a task, engines, and a run's folder.

It may know everything below, Hydra, Ray and Flower. Of the other files `settings/` knows only the
trackers that it makes. `tracking/` tells trackers what was released, and alone knows their
packages. `tuning/` chooses hyper-parameters, and `local/` starts nodes and engines here.

    >>> from fl_dp.app import simulate, train_private
"""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .local.script_simulation import simulate
    from .private_module import PrivateModule, train_private
else:
    # With Flower and an engine.
    __getattr__ = lazy_exports(
        __name__,
        {
            "PrivateModule": "private_module",
            "simulate": "local.script_simulation",
            "train_private": "private_module",
        },
    )

__all__ = ["PrivateModule", "simulate", "train_private"]
