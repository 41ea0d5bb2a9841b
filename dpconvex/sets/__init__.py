"""Convex sets: the feasible set of the parameters, projections, certified minima, and domains of atoms."""
