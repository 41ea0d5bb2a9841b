"""Core expressions, their atoms, and the conversion from and to CVXPY."""
