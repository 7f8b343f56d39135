"""The kernels as differentiable functions: one model's, and under vmap the stacked one.

A function sees one model and has a vmap rule; in that rule the models' tensors are one stacked tensor each, which is
what the kernels know.
"""
