"""A checkpoint's detector as one file that other programs run: ONNX, or torch.export's."""
