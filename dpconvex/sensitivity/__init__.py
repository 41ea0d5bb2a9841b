"""Bounds on what one record can do, by rules over expressions."""
