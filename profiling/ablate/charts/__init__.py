"""The picture of each ablation: on the left what was measured, on the right the ratios."""
