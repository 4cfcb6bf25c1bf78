"""Choice of hyper-parameters before a training, and what it is charged as."""

TRIAL_VALUES = "trials"
"""The name of a unit's scores of all candidates, where a statistic asks for values."""
