"""Attacks on constants and on whole guarantees, by the exact laws of what is released (docs/audit.md)."""
