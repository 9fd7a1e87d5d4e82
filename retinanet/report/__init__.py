"""`retinanet report`: one page about what a trained detector finds and misses."""
