"""scikit-learn estimators: thin wrappers of the problem files.  Needs scikit-learn: ``pip install dpconvex[estimators]``."""
