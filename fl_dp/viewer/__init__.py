"""The viewer: dashboard, reports and papers, read from the folders of runs.

A wing: it may know the commands and everything below, not the lab, and nothing imports it. What the
app has from it stands in `wing.py`.
"""
