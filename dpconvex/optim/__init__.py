"""Minimisers of a private objective, and proofs of how far an answer is from the minimiser."""
