"""The engine of a training step: precision, memory layout, convolutions, optimizers."""
