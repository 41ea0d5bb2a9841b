"""Attacks on certified constants and on whole guarantees, by exact distributions of releases (docs/audit.md)."""
