"""Expressions, their atoms, and the reader and writer of CVXPY."""
