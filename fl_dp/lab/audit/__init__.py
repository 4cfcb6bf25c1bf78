"""Audits: the least privacy loss that what was released is proof of, beside the one claimed."""
