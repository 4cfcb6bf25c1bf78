"""The commands of `fl-dp`, one file each.

They stand above everything else. Those of a wing, `lab/` or `viewer/`, import it when called.
"""
