"""Data sets are read anew, whatever other tests of a process read."""

import pytest

from fl_dp.tasks.datasets import data_source


@pytest.fixture(autouse=True)
def fresh_data_sets() -> None:
    """Forget data sets of other tests, whose folders may have had the same name."""
    data_source._load_once.cache_clear()
