"""Attacks on constants and on whole promises, by the exact laws of what is released (docs/audit.md)."""
