"""The viewer: dashboard, reports and papers, read from the folders of runs.

A wing: it may know the commands and everything below, not the lab, and nothing imports it.
`wing.py` has what the app gets from it.
"""
