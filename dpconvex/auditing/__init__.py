"""Attacks on whole promises, by the exact laws of what is released (docs/audit.md)."""

from dpconvex.auditing.report import Attack, Audit
from dpconvex.auditing.whole import audit

__all__ = ["Attack", "Audit", "audit"]
