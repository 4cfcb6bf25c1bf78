"""Attacks on what training shows: they measure what a protection stops, on one's own data.

A failed attack proves no privacy: another may succeed. Epsilon bounds them all.
"""
