"""One set of annotations in two: to train on, and to evaluate on."""
