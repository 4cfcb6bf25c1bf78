"""`python -m fl_dp` is `fl-dp`."""

from fl_dp.commands.entry import main

main()
