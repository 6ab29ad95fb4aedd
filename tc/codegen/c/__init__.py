"""Loops as text of the C family: C for a host, OpenCL-C and CUDA-C for devices."""
