"""The mathematics of attention once, for arrays and tensors alike: scores, weights, masks, terms, kernels."""
