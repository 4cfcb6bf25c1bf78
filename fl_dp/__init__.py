"""fl-dp: differentially private federated learning for Flower."""

from typing import TYPE_CHECKING

try:
    import fcntl  # noqa: F401  # only asked for: locks of files are made elsewhere
except ModuleNotFoundError:
    raise ImportError(
        "fl-dp runs on Linux and macOS, whose file locks (fcntl) protect its ledgers, and this "
        "system has none: on Windows install it in WSL 2"
    ) from None

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fl_dp.accounting import PrivacyBudget
    from fl_dp.ledger import PrivacyLedger
    from fl_dp.plan import Plan
else:
    # Every module of the package imports this one first.
    __getattr__ = lazy_exports(
        __name__,
        {"PrivacyBudget": "accounting", "PrivacyLedger": "ledger", "Plan": "plan"},
    )

__version__ = "0.1.0"
__all__ = ["Plan", "PrivacyBudget", "PrivacyLedger", "__version__"]
