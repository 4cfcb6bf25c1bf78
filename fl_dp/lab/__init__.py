"""Attacks, audits, tuning and prices: what researchers and auditors do with a training."""
