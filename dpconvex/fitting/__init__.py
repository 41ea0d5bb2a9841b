"""Verification, private fits, releases, and their files."""
