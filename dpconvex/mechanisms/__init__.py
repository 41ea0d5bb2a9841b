"""Mechanisms: recipes for private releases, each with its certificate."""
