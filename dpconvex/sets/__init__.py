"""Convex sets: the feasible set of the parameters, and where quadratics and domains of atoms lie in it."""
