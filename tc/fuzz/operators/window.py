"""Operators that slide a window or sample an image: convolutions, pools, resizing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tc.fuzz.builder import F16, F32, U8, Builder, Held, Rejected
from tc.fuzz.operators.row import Row


def window(
    b: Builder, spatial: tuple[int, ...], *, dilate: bool = True, auto: bool = True
) -> tuple[list[int], dict[str, Any]]:
    """A kernel shape and attributes of a window that fits at least once."""
    n = len(spatial)
    kernel = [b.integer(1, min(5, max(1, s))) for s in spatial]
    attrs: dict[str, Any] = {}
    if b.chance(0.2):
        kernel = [min(3, max(1, min(spatial)))] * n
    if b.chance(0.6):
        attrs["strides"] = [b.choose((1, 1, 2, 3)) for _ in spatial]
    dilations = [1] * n
    if dilate and b.chance(0.3):
        dilations = attrs["dilations"] = [b.choose((1, 2, 3)) for _ in spatial]
    mode = (
        b.choose(("pads", "pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID")) if auto else b.choose(("pads", "none"))
    )
    pads = [0] * (2 * n)
    if mode == "pads":
        pads = attrs["pads"] = [b.integer(0, max(0, min(2, k - 1))) for k in (*kernel, *kernel)]
    elif mode != "none":
        attrs["auto_pad"] = mode
    for k in range(n):
        while (
            not mode.startswith("SAME") and (kernel[k] - 1) * dilations[k] + 1 > spatial[k] + pads[k] + pads[k + n] > 0
        ):
            kernel[k] -= 1
            if kernel[k] <= pads[k] or kernel[k] <= pads[k + n]:
                raise Rejected("a pad as wide as the kernel")
            if kernel[k] < 1:
                raise Rejected("no kernel fits")
    return kernel, attrs


def conv(b: Builder) -> None:
    rank = b.choose((3, 4, 4, 4, 5))
    x = b.finite(b.image(b.types("Conv", within=(F32, F16)), rank))
    channels = x.shape[1]
    group = b.choose([g for g in (1, 1, 1, 2, 3, 4, channels) if channels and channels % g == 0])
    outputs = group * b.choose((1, 1, 2, 3, 8))
    if channels == 0 or outputs > 64:
        raise Rejected("no channels")
    kernel, attrs = window(b, x.shape[2:])
    w = b.weights(x.dtype, (outputs, channels // group, *kernel))
    bias = b.weights(x.dtype, (outputs,)) if b.chance(0.5) else None
    if b.chance(0.6):
        attrs["kernel_shape"] = kernel
    if group > 1 or b.chance(0.3):
        attrs["group"] = group
    found = b.emit("Conv", [x, w, bias], **attrs)[0]
    if b.chance(0.3):
        b.emit(b.choose(("Relu", "Sigmoid", "Neg", "HardSwish" if b.since(14) and x.dtype == F32 else "Relu")), [found])


def conv_transpose(b: Builder) -> None:
    x = b.finite(b.image((F32,), b.choose((3, 4, 4, 5)), most=600))
    group = b.choose([g for g in (1, 1, 2, x.shape[1]) if x.shape[1] and x.shape[1] % g == 0])
    n = x.rank - 2
    kernel = [b.integer(1, 4) for _ in range(n)]
    attrs: dict[str, Any] = {"strides": [b.choose((1, 2, 3)) for _ in range(n)]} if b.chance(0.7) else {}
    strides = attrs.get("strides", [1] * n)
    if b.chance(0.25):
        attrs["dilations"] = [b.choose((1, 2)) for _ in range(n)]
    match b.integer(0, 3):
        case 0:
            attrs["pads"] = [b.integer(0, max(0, k - 1) // 2) for k in (*kernel, *kernel)]
        case 1:
            attrs["auto_pad"] = b.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if b.chance(0.3) and "auto_pad" not in attrs:
        attrs["output_padding"] = [b.integer(0, s - 1) for s in strides]
    if group > 1:
        attrs["group"] = group
    if b.chance(0.5):
        attrs["kernel_shape"] = kernel
    outputs = b.extent(1, 3)
    bias = b.weights(x.dtype, (outputs * group,)) if b.chance(0.4) else None
    b.emit("ConvTranspose", [x, b.weights(x.dtype, (x.shape[1], outputs, *kernel)), bias], **attrs)


def pool(op: str) -> Row:
    def draw(b: Builder) -> None:
        within = (F32, F16) if op != "MaxPool" else (F32, F16, U8)
        x = b.finite(b.image(b.types(op, within=within), b.choose((3, 4, 4, 4, 5))))
        dilate = (
            (op == "MaxPool" and b.since(10))
            or (op == "AveragePool" and b.since(19))
            or (op == "LpPool" and b.since(18))
        )
        kernel, attrs = window(b, x.shape[2:], dilate=dilate)
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel, attrs.get("dilations", [1] * len(kernel)), strict=True)]
        is_same = attrs.get("auto_pad", "").startswith("SAME")
        if op == "MaxPool" and is_same and any(s > r for s, r in zip(attrs.get("strides", ()), reaches)):
            raise Rejected("the oracles cut off at other ends")
        if b.since(10) and "auto_pad" not in attrs and b.chance(0.3) and (op != "LpPool" or b.since(18)):
            attrs["ceil_mode"] = 1
        if op == "AveragePool" and b.chance(0.5):
            attrs["count_include_pad"] = b.integer(0, 1)
        if op == "LpPool" and b.chance(0.5):
            attrs["p"] = b.choose((1, 2, 3))
        outputs = 2 if op == "MaxPool" and b.chance(0.25) else 1
        if outputs == 2 and b.chance(0.3):
            attrs["storage_order"] = 1
        b.emit(op, [x], outputs, kernel_shape=kernel, **attrs)

    return Row(op, draw, weight=1.5 if op != "LpPool" else 1.0)


def global_pool(op: str) -> Row:
    def draw(b: Builder) -> None:
        x = b.finite(b.image(b.types(op), b.choose((3, 4, 4, 5))))
        b.emit(op, [x], **({"p": b.choose((1, 2, 3))} if op == "GlobalLpPool" and b.chance(0.5) else {}))

    return Row(op, draw)


def max_unpool(b: Builder) -> None:
    x = b.finite(b.data(F32, (b.integer(1, 2), b.extent(1, 3), 2 * b.extent(1, 4), 2 * b.extent(1, 4))))  # no NaN
    values, places = b.emit("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])
    if b.style.check_indices:
        places = b.input(places.array, "index")
    size = b.parameter(x.shape) if b.chance(0.5) else None
    b.emit("MaxUnpool", [values, places, size], kernel_shape=[2, 2], strides=[2, 2])


def resize(b: Builder) -> None:
    """Every mode, by scales and by sizes; sizes that are 1 and sizes that shrink."""
    x = b.image((F32,), b.choose((4, 4, 4, 3, 5)), most=500)
    if b.rng.random() < 0.3 and not b.since(11):
        raise Rejected("old forms are rarer")
    if x.array.size == 0:
        raise Rejected("nothing to resize")
    mode = b.choose(("nearest", "linear", "cubic") if b.since(11) else ("nearest", "linear"))
    x = x if mode == "nearest" else b.finite(x)  # an infinite neighbour that counts nothing
    axes = list(range(x.rank)) if not (b.since(18) and b.chance(0.3)) else list(range(2, x.rank))
    sizes = [
        n if k < 2 and b.chance(0.95) else b.choose((1, n, n + 1, 2 * n, 3 * n, max(1, n // 2), max(1, n - 1)))
        for k, n in enumerate(x.shape)
    ]
    by_scale = b.chance(0.5) or not b.since(11)
    scales = [1.0 if s == n else b.choose((2.0, 0.5, 1.5, 3.0, s / n)) for s, n in zip(sizes, x.shape)]
    if any(int(np.floor(n * s)) < 1 for n, s in zip(x.shape, scales)):
        raise Rejected("a size of 0")
    attrs: dict[str, Any] = {"mode": mode}
    if not b.since(11):
        op = "Upsample" if not b.since(10) else "Resize"
        if op == "Upsample":
            scales = [max(s, 1.0) for s in scales]
        b.emit(
            op,
            [x, b.parameter(np.array(scales), F32)] if b.since(9) else [x],
            **({"scales": scales} if not b.since(9) else {}),
            **attrs,
        )
        return
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    coordinates += ["tf_half_pixel_for_nn"] if not b.since(13) else []
    coordinates += ["half_pixel_symmetric"] if b.since(19) else []
    if b.chance(0.8):
        attrs["coordinate_transformation_mode"] = b.choose(coordinates)
    if mode == "nearest" and b.chance(0.7):
        attrs["nearest_mode"] = b.choose(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic" and b.chance(0.5):
        attrs["cubic_coeff_a"] = b.choose((-0.5, -0.75))
        attrs["exclude_outside"] = b.integer(0, 1)
    if b.since(18) and mode != "nearest" and b.chance(0.3):
        attrs["antialias"] = 1
    if len(axes) < x.rank:
        attrs["axes"] = axes
    if b.since(18) and not by_scale and b.chance(0.3):
        attrs["keep_aspect_ratio_policy"] = b.choose(("stretch", "not_larger", "not_smaller"))
    roi = None if b.since(13) else b.constant(np.zeros(0, np.float32))
    if by_scale:
        b.emit("Resize", [x, roi, b.parameter(np.array([scales[a] for a in axes]), F32)], **attrs)
    else:
        none = None if b.since(13) else b.constant(np.zeros(0, np.float32))
        b.emit("Resize", [x, roi, none, b.parameter([sizes[a] for a in axes])], **attrs)


def grid_sample(b: Builder) -> None:
    x = b.image((F32,), 4, most=500)
    grid = b.finite(b.data(F32, (x.shape[0], b.extent(1, 5), b.extent(1, 5), 2)))  # onnxruntime makes integers of NaN
    scaled = b.emit("Mul", [grid, b.constant(np.array(0.4, np.float32))])[0]
    modes = ("linear", "nearest", "cubic") if b.since(20) else ("bilinear", "nearest", "bicubic")
    attrs: dict[str, Any] = {"mode": b.choose(modes)} if b.chance(0.8) else {}
    if b.chance(0.7):
        attrs["padding_mode"] = b.choose(("zeros", "border", "reflection"))
    b.emit("GridSample", [x, scaled], **attrs, **({"align_corners": b.integer(0, 1)} if b.chance(0.6) else {}))


def affine_grid(b: Builder) -> None:
    batch = b.integer(1, 3)
    n = b.choose((2, 2, 3))
    size = [batch, b.extent(1, 3), *(b.extent(1, 5) for _ in range(n))]
    b.emit(
        "AffineGrid",
        [b.data(F32, (batch, n, n + 1)), b.parameter(size)],
        **({"align_corners": b.integer(0, 1)} if b.chance(0.6) else {}),
    )


def roi_align(b: Builder) -> None:
    x = b.finite(b.image((F32,), 4, most=500))  # which samples have a weight of zero, by which infinity is multiplied, each knows otherwise
    count = b.extent(1, 4)
    corner = b.rng.integers(0, 8, (count, 2)) / 2
    rois = np.concatenate([corner, corner + b.rng.integers(1, 8, (count, 2)) / 2], 1).astype(np.float32)
    batches = b.parameter(b.rng.integers(0, x.shape[0], count), kind="index")
    attrs: dict[str, Any] = {
        "output_height": b.integer(1, 3),
        "output_width": b.integer(1, 3),
        "sampling_ratio": b.integer(0, 2),
    }
    if b.chance(0.5):
        attrs["mode"] = b.choose(("avg", "max"))
    if b.since(16) and b.chance(0.5):
        attrs["coordinate_transformation_mode"] = b.choose(("half_pixel", "output_half_pixel"))
    b.emit("RoiAlign", [x, b.fresh(rois, "fixed", 0.2), batches], spatial_scale=b.choose((1.0, 0.5)), **attrs)


def max_roi_pool(b: Builder) -> None:
    x = b.finite(b.image((F32,), 4, most=500))  # onnxruntime forgets NaN when a number follows
    count = b.extent(1, 3)
    corner = b.rng.integers(0, 3, (count, 2))
    rois = np.concatenate(
        [b.rng.integers(0, x.shape[0], (count, 1)), corner, corner + b.rng.integers(1, 4, (count, 2))], 1
    ).astype(np.float32)
    b.emit("MaxRoiPool", [x, b.fresh(rois, "fixed", 0.2)], pooled_shape=[b.integer(1, 3), b.integer(1, 3)])


def deform_conv(b: Builder) -> None:
    groups, parts = b.choose((1, 1, 2, 3)), b.choose((1, 1, 2, 4))
    n, c, h, w = b.integer(1, 2), math.lcm(groups, parts) * b.extent(1, 3), b.extent(3, 6), b.extent(3, 6)
    kh, kw, sh, sw, pad = b.integer(1, 3), b.integer(1, 3), b.integer(1, 2), b.integer(1, 2), b.integer(0, 1)
    out = ((h + 2 * pad - kh) // sh + 1, (w + 2 * pad - kw) // sw + 1)
    offset = b.finite(b.data(F32, (n, 2 * parts * kh * kw, *out)))  # nowhere is said where NaN is
    mask = b.data(F32, (n, parts * kh * kw, *out)) if b.chance(0.4) else None
    weight = b.weights(F32, (groups * b.extent(1, 3), c // groups, kh, kw))
    bias = b.weights(F32, (weight.shape[0],)) if b.chance(0.5) or mask is not None else None
    attrs = {"group": groups, "offset_group": parts, "strides": [sh, sw], "pads": [pad] * 4}
    b.emit("DeformConv", [b.data(F32, (n, c, h, w)), weight, offset, bias, mask], **attrs)


def col2im(b: Builder) -> None:
    h, w, kh, kw = b.extent(2, 6), b.extent(2, 6), b.integer(1, 2), b.integer(1, 2)
    blocks = (h - kh + 1) * (w - kw + 1)
    x = b.reshaped((F32,), (b.integer(1, 2), b.extent(1, 3) * kh * kw, blocks))
    b.emit("Col2Im", [x, b.parameter([h, w]), b.parameter([kh, kw])])


def square_image(b: Builder) -> None:
    """An image whose height and width are one symbol, through a convolution and a pool."""
    n = b.choose((1, 2, 3, 5, 8, 9))
    x: Held = b.data(F32, (b.choose((1, 2)), b.choose((1, 3, 8, 17)), n, n))
    y = b.emit("Conv", [x, b.weights(F32, (b.choose((1, 4, 8, 16)), x.shape[1], 1, 1))])[0]
    b.emit(b.choose(("GlobalAveragePool", "GlobalMaxPool", "Relu", "Identity")), [y])


ROWS = (
    Row("Conv", conv, weight=3.0),
    Row("Conv", square_image, weight=0.5),
    Row("ConvTranspose", conv_transpose, weight=1.5),
    *(pool(op) for op in ("MaxPool", "AveragePool", "LpPool")),
    *(global_pool(op) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")),
    Row("MaxUnpool", max_unpool, since=9),
    Row("Resize", resize, since=7, weight=3.0),
    Row("GridSample", grid_sample, since=16),
    Row("AffineGrid", affine_grid, since=20),
    Row("RoiAlign", roi_align, since=10),
    Row("MaxRoiPool", max_roi_pool, weight=0.3),
    Row("DeformConv", deform_conv, since=19),
    Row("Col2Im", col2im, since=18),
)
