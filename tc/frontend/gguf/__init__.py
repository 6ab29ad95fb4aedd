"""The GGUF front end: tensors of a file, what they hold, and products with them."""

from tc.frontend.gguf.blocks import QuantizedBlocks, decode, quantized_blocks
from tc.frontend.gguf.product import product_with, tensor_product
from tc.frontend.gguf.reading import GgufFile, GgufTensor, read_gguf

__all__ = [
    "GgufFile",
    "GgufTensor",
    "QuantizedBlocks",
    "decode",
    "product_with",
    "quantized_blocks",
    "read_gguf",
    "tensor_product",
]
