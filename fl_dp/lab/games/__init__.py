"""Audits of the running system: games on strategies, canary clients, records."""
