"""The viewer: dashboard, reports and papers, read from the folders of runs.

A wing: it may know the app and how the terminal shows things, not the lab; commands alone import
it, when they are called.
"""
