"""Forward and backward time of each layer of a network, as `caffe time` shows it."""
