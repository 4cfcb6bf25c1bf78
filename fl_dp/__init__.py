"""fl-dp: differentially private federated learning for Flower."""

from fl_dp.accounting import PrivacyBudget, PrivacyLedger, PrivacyPlan

__version__ = "0.1.0"
__all__ = ["PrivacyBudget", "PrivacyLedger", "PrivacyPlan", "__version__"]
