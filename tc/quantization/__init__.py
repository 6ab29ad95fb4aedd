"""Which edges of a model run in 8 bits, with which scales: searched for the hardware at hand, written as a standard ONNX file."""
