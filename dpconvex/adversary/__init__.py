"""The search behind `falsify`: records, a neighbour and parameters that push gradients and curvature to their extremes.

One record's gradient and Hessian are evaluated by automatic differentiation of the loss as the solvers see it; nothing of the
calculus is used.
"""
