"""What makes a step fast: precision, memory layout, the optimizer's form."""
