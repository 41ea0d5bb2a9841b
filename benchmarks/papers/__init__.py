"""Reproductions of published experiments, and checks of published claims: one module and one command each."""
