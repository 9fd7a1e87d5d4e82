"""The paper's ablations: what one change brings, measured here, beside what the paper says."""
