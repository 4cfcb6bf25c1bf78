"""The commands of `fl-dp`, one file each."""
