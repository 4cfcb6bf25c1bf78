"""The lab: attacks and audits, what researchers and auditors do with a training.

A wing: it may know the app and how the terminal shows things, not the viewer; commands alone import
it, when they are called.
"""
