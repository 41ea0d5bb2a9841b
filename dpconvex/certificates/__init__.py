"""Certificates: their numbers, parts, derivation and text."""
