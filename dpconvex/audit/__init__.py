"""Attacks on whole promises, by the exact laws of what is released (docs/audit.md)."""

from dpconvex.audit.report import Attack, Audit
from dpconvex.audit.whole import audit

__all__ = ["Attack", "Audit", "audit"]
