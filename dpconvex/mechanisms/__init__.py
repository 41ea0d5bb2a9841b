"""Mechanisms: recipes for private releases, each with its certificate."""

import dpconvex.mechanisms.certificate_kinds  # noqa: F401  (certificates of all kinds are to be made wherever one is)
