"""Secure sums: a server learns what clients' vectors add up to, and nothing else."""
