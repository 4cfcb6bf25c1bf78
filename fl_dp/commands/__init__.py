"""The commands of `fl-dp`, one file each, and what they print in a terminal.

They may know the app and everything below, and no wing: a wing adds commands of its own.
"""
