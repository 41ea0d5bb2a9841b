"""Learners built on the language: problem files, estimators, mixtures, and choices among options."""
