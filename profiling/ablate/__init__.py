"""The paper's ablations: effects of single changes, measured here, beside the paper's."""
