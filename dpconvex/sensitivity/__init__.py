"""Bounds on the gradient and the Hessian of one record's loss, by rules over expressions."""
