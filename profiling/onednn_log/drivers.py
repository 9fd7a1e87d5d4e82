"""benchdnn's names of the kinds of primitive."""

DRIVERS = {
    "batch_normalization": "bnorm",
    "convolution": "conv",
    "deconvolution": "deconv",
    "group_normalization": "gnorm",
    "inner_product": "ip",
    "layer_normalization": "lnorm",
    "pooling": "pool",
}
"""By oneDNN's name, where the two differ."""
