"""The lab: attacks, audits and tuning, what researchers and auditors do with a training.

A wing: it may know the commands and everything below, not the viewer. Nothing imports it; what the
app has from it stands in `wing.py`.
"""
