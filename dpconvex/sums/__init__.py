"""Objectives of a whole data set, compiled: values, gradients and curvature."""
