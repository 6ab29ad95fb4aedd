"""Models as text that several tests tune or compile."""

PRODUCTS = """
@graph
def main(x: f32[40, 64], w: f32[64, 96], v: f32[96, 32]):
    a: f32[40, 96] = matmul(x, w)
    b: f32[40, 96] = relu(a)
    c: f32[40, 32] = matmul(b, v)
    return c
"""
