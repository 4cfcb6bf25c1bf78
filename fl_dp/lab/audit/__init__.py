"""Audits: the least privacy loss that releases prove, beside the claimed one."""
