"""The calculus: small rules that bound how one record moves the gradient of a perturbed objective."""
