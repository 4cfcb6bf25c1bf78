"""`python -m fl_dp` is `fl-dp`."""

from .cli import main

main()
