"""Measured performance: one command, one table, a few pictures (see docs/performance.md)."""
