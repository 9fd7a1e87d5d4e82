"""Export of a checkpoint's detector for other programs: ONNX or torch.export's format."""
