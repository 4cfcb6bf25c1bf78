"""Attacks on what a training releases, as strong as the published ones: for simulations alone."""
