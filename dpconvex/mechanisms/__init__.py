"""Mechanisms: theorem, calibration and the law of the noise, each a frozen description."""
