"""The zoo: every model runs in onnxruntime, means what it says, and is prepared once and whole."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks import llama, minilm, zoo
from benchmarks.inputs import InputSpec
from benchmarks.kernels import make_softmax
from benchmarks.light import FILES, make_light
from tc import demo

onnxruntime = pytest.importorskip("onnxruntime")

LARGE = {"resnet50", "resnet50_dyn", "vgg19", "zfnet512", "alexnet", "llama_prefill", "llama_decode", "llama_dyn"}
LARGE |= {"gemv_4096", "gelu_16m"}
FETCHED = {name for name in zoo.names() if zoo.ENTRIES[name].member is not None}
TWINS = {name for name in zoo.names() if zoo.ENTRIES[name].twin}
LARGE |= TWINS - {"digits_qdq", "squeezenet_qdq", "blocks_qdq"}
slow = pytest.mark.slow


def models() -> list[object]:
    """All names; the ones that must be fetched, or that are large, are marked slow."""
    return [pytest.param(name, marks=[slow] if name in LARGE | FETCHED else []) for name in zoo.names()]


def session(name: str) -> onnxruntime.InferenceSession:
    """Twins run as they are written, in floats: fused, sums of bytes saturate on CPUs without instructions for them."""
    options = onnxruntime.SessionOptions()
    if name in TWINS:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(zoo.path(name), options, providers=["CPUExecutionProvider"])


def run(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    running = session(name)
    return dict(zip((output.name for output in running.get_outputs()), running.run(None, dict(arrays))))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", models())
def test_a_model_runs_and_its_results_depend_on_its_inputs(name: str, rng: np.random.Generator) -> None:
    running = session(name)

    first, second = (running.run(None, zoo.random_inputs(name, rng)) for _ in range(2))

    for output, a, b in zip(running.get_outputs(), first, second):
        assert np.isfinite(a).all(), output.name
        assert a.size == 1 or a.std() > 1e-3 * np.abs(a).max(), f"{output.name} is nearly constant"
        assert np.abs(a - b).max() > 1e-3 * np.abs(a).max(), f"{output.name} hardly depends on the inputs"


@pytest.mark.parametrize("name", models())
def test_default_dims_name_every_symbolic_dim(name: str) -> None:
    symbolic = {dim for spec in zoo.signature(name) for dim in spec.shape if isinstance(dim, str)}

    assert set(zoo.default_dims(name)) == symbolic


@pytest.mark.parametrize("name", models())
def test_the_stored_signature_is_the_one_of_the_file(name: str) -> None:
    assert zoo.signature(name) == zoo.signature(zoo.path(name))


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("resnet50_dyn", {"N": 3}),
        ("ppocr_det", {"p2o.DynamicDimension.1": 96, "p2o.DynamicDimension.2": 160}),
        ("ppocr_rec", {"p2o.DynamicDimension.0": 2, "p2o.DynamicDimension.1": 133}),
        ("ppocr_cls", {"x.0": 3}),
        ("silero_vad", {"input.0": 3}),
        ("silero_vad", {"input.1": 288}),
        ("silero_vad_sequence", {"sequence_length": 5}),
        ("magika", {"unk__214": 4}),
        ("minilm_dyn", {"batch": 3, "seq": 1}),
        ("minilm_dyn", {"batch": 1, "seq": 512}),
        ("llama_dyn", {"seq": 7, "past": 0}),
        ("llama_dyn", {"seq": 1, "past": 300}),
    ],
)
@slow
def test_a_dynamic_model_runs_at_other_dims(name: str, dims: dict[str, int], rng: np.random.Generator) -> None:
    results = run(name, zoo.random_inputs(name, rng, dims))

    assert all(np.isfinite(result).all() for result in results.values())


@slow
def test_resnet50_gives_each_image_of_a_batch_what_it_gives_it_alone(rng: np.random.Generator) -> None:
    batch = zoo.random_inputs("resnet50_dyn", rng, {"N": 2})["gpu_0/data_0"]

    together = run("resnet50_dyn", {"gpu_0/data_0": batch})["gpu_0/softmax_1"]
    alone = [run("resnet50", {"gpu_0/data_0": image[None]})["gpu_0/softmax_1"] for image in batch]

    assert relative_error(together, np.concatenate(alone)) < 1e-5


@slow
def test_ppocr_reads_the_digits_on_random_pages(rng: np.random.Generator) -> None:
    running = session("ppocr_rec")
    characters = ["", *running.get_modelmeta().custom_metadata_map["character"].split("\n"), " "]

    (chances,) = running.run(None, zoo.random_inputs("ppocr_rec", rng, {"p2o.DynamicDimension.0": 8}))

    read = "".join(characters[i] for i in chances.argmax(axis=-1).ravel())
    assert len(read) > 40
    assert sum(letter in "0123456789 " for letter in read) > 0.9 * len(read)


# MiniLM and the decoder against float64 programs written from the definition of the architecture.


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {name: array.astype(np.float64) for name, array in found.items()}


def layer_norm(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12) * w[name + "weight"] + w[name + "bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    special = pytest.importorskip("scipy.special")
    return x * 0.5 * (1 + special.erf(x / np.sqrt(2)))


def minilm_reference(w: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """The embedding of one sentence; every argument of shape (tokens,)."""
    table = "embeddings.{}_embeddings.weight"
    x = w[table.format("word")][ids] + w[table.format("token_type")][kinds] + w[table.format("position")][: len(ids)]
    x = layer_norm(x, w, "embeddings.LayerNorm.")
    for i in range(minilm.LAYERS):
        p = f"encoder.layer.{i}."

        def linear(value: np.ndarray, name: str, p: str = p) -> np.ndarray:
            return value @ w[p + name + ".weight"] + w[p + name + ".bias"]

        q, k, v = (linear(x, f"attention.self.{n}").reshape(len(ids), 12, 32) for n in ("query", "key", "value"))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(32)
        chances = softmax(np.where(mask == 1, scores, -np.inf))
        context = np.einsum("hij,jhd->ihd", chances, v).reshape(len(ids), 384)
        x = layer_norm(linear(context, "attention.output.dense") + x, w, p + "attention.output.LayerNorm.")
        x = layer_norm(linear(gelu(linear(x, "intermediate.dense")), "output.dense") + x, w, p + "output.LayerNorm.")
    mean = x[mask == 1].mean(axis=0)
    return mean / np.linalg.norm(mean)


@slow
@pytest.mark.parametrize("name", ["minilm", "minilm_dyn"])
def test_minilm_is_the_encoder_that_its_paper_describes(name: str, rng: np.random.Generator) -> None:
    weights = weights_of(onnx.load(zoo.path("minilm_dyn")))
    # The exporters' order of weights (in, out) is stored under the name of the layer, where a checkpoint has (out, in).
    arrays = zoo.random_inputs(name, rng)

    found = run(name, arrays)["sentence_embedding"]

    row = [arrays[n][0] for n in ("input_ids", "attention_mask", "token_type_ids")]
    assert relative_error(found[0], minilm_reference(weights, *row)) < 1e-5


@slow
def test_minilm_ignores_padding(rng: np.random.Generator) -> None:
    arrays = zoo.random_inputs("minilm_dyn", rng, {"batch": 3, "seq": 40})
    longer = {name: np.pad(array, ((0, 0), (0, 25))) for name, array in arrays.items()}

    short, padded = (run("minilm_dyn", given)["sentence_embedding"] for given in (arrays, longer))

    assert relative_error(padded, short) < 1e-5


def llama_reference(w: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Logits of every position of one prompt that starts at position 0."""
    n, head, half = len(ids), llama.HEAD_WIDTH, llama.HEAD_WIDTH // 2
    angles = np.outer(np.arange(n), 10000.0 ** (-np.arange(half) / half))
    turns = np.exp(1j * angles)[:, None, :]  # a rotation of each pair (x[i], x[i + half]) is a complex product

    def rotate(x: np.ndarray) -> np.ndarray:
        turned = (x[..., :half] + 1j * x[..., half:]) * turns
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * w[name + ".weight"]

    x = w["embed_tokens.weight"][ids]
    for i in range(llama.LAYERS):
        p = f"layers.{i}."
        y = norm(x, p + "input_norm")
        q = rotate((y @ w[p + "q_proj.weight"]).reshape(n, llama.HEADS, head))
        k, v = ((y @ w[p + f"{c}_proj.weight"]).reshape(n, llama.KV_HEADS, head) for c in "kv")
        k, v = (a.repeat(llama.HEADS // llama.KV_HEADS, axis=1) for a in (rotate(k), v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(head)
        chances = softmax(np.where(np.tri(n) == 1, scores, -np.inf))
        x = x + np.einsum("hij,jhd->ihd", chances, v).reshape(n, llama.WIDTH) @ w[p + "o_proj.weight"]
        y = norm(x, p + "post_norm")
        gate = y @ w[p + "gate_proj.weight"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[p + "up_proj.weight"])) @ w[p + "down_proj.weight"]
    return norm(x, "norm") @ w["lm_head.weight"]


@slow
def test_the_decoder_is_the_one_that_its_architecture_describes(rng: np.random.Generator) -> None:
    arrays = zoo.random_inputs("llama_prefill", rng)

    found = run("llama_prefill", arrays)["logits"]

    expected = llama_reference(weights_of(onnx.load(zoo.path("llama_prefill"))), arrays["input_ids"][0])
    assert relative_error(found[0], expected) < 1e-4


@slow
def test_decoding_with_the_cache_continues_a_prefill(rng: np.random.Generator) -> None:
    ids = rng.integers(0, llama.VOCABULARY, (1, 129), dtype=np.int64)
    places = np.arange(129, dtype=np.int64)[None]
    nothing = zoo.random_inputs("llama_dyn", rng, {"seq": 1, "past": 0})

    whole = run("llama_dyn", nothing | {"input_ids": ids, "position_ids": places})
    start = run("llama_prefill", {"input_ids": ids[:, :128], "position_ids": places[:, :128]})
    cache = {name.replace("present", "past"): value for name, value in start.items() if name != "logits"}
    last = {"input_ids": ids[:, 128:], "position_ids": places[:, 128:], **cache}

    for name in ("llama_decode", "llama_dyn"):
        step = run(name, last)
        assert relative_error(step["logits"][0, -1], whole["logits"][0, -1]) < 1e-4
        assert relative_error(step["present_v_7"], whole["present_v_7"]) < 1e-4
    assert relative_error(start["logits"], whole["logits"][:, :128]) < 1e-4


def test_light_networks_keep_every_weight_of_the_original_and_no_filler(rng: np.random.Generator) -> None:
    model = make_light("squeezenet", rng)

    assert not [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    assert [value.name for value in model.graph.input] == ["data_0"]
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    assert shapes["conv1_w_0"] == [64, 3, 3, 3]


def test_random_inputs_mean_something_to_the_model(rng: np.random.Generator) -> None:
    for _ in range(20):
        specs = tuple(InputSpec(n, "int64", ("b", "s")) for n in ("input_ids", "attention_mask", "token_type_ids"))
        shapes = {spec.name: (4, 9) for spec in specs}

        arrays = zoo.inputs.make_sentences(rng, specs, shapes)

        mask = arrays["attention_mask"]
        assert set(np.unique(mask)) <= {0, 1}
        assert mask.sum(axis=1).min() >= 1
        assert arrays["input_ids"].min() >= 0
        assert arrays["input_ids"].max() < minilm.VOCABULARY
        assert (arrays["input_ids"][:, 0] == 101).all()
        assert (arrays["input_ids"][mask == 0] == 0).all()


@pytest.mark.parametrize(("samples", "rate"), [(576, 16000), (288, 8000)])
def test_audio_says_its_sampling_rate(samples: int, rate: int, rng: np.random.Generator) -> None:
    specs = (InputSpec("input", "float32", ("b", "n")), InputSpec("sr", "int64", ()))

    arrays = zoo.inputs.make_audio(rng, specs, {"input": (2, samples), "sr": ()})

    assert arrays["sr"] == rate
    assert arrays["input"].shape == (2, samples)
    assert 0.01 < np.abs(arrays["input"]).max() <= 1


def test_a_file_that_is_not_of_the_zoo_gets_inputs_of_its_types(tmp_path: Path, rng: np.random.Generator) -> None:
    file = tmp_path / "any.onnx"
    onnx.save(make_softmax(2, 5), file)

    arrays = zoo.random_inputs(file, rng)

    assert arrays["x"].shape == (2, 5)
    assert arrays["x"].dtype == np.float32


def test_an_unknown_model_or_dim_is_refused_by_name(rng: np.random.Generator) -> None:
    with pytest.raises(zoo.ZooError, match=r"no model 'resnet51'.*resnet50"):
        zoo.path("resnet51")
    with pytest.raises(zoo.ZooError, match="no symbolic dim batch; there is none: its shapes are fixed"):
        zoo.random_inputs("softmax_12x128x128", rng, {"batch": 2})


# Quantized twins.


@pytest.mark.parametrize("name", [pytest.param(name, marks=[slow] if name in LARGE else []) for name in sorted(TWINS)])
def test_a_quantized_twin_has_the_inputs_of_its_model_and_gives_nearly_what_it_gives(name: str, rng: np.random.Generator) -> None:
    original = zoo.ENTRIES[name].twin
    arrays = zoo.random_inputs(name, rng)

    found, expected = (next(iter(run(each, arrays).values())) for each in (name, original))

    assert zoo.signature(name) == zoo.signature(original)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.7
    assert len(np.unique(found)) > min(10, found.size // 2)


def test_the_quantized_digits_network_reads_digits() -> None:
    images, labels = demo.load_heldout()

    (found,) = run("digits_qdq", {"image": demo.as_model_input(images)}).values()

    assert (found.argmax(axis=1) == labels).mean() > 0.97


def test_all_of_a_quantized_twin_is_eight_bits_per_channel() -> None:
    graph = onnx.load(zoo.path("squeezenet_qdq")).graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {value: node for node in graph.node for value in node.output}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]

    assert len(convolutions) == 26
    for node in convolutions:
        image, filters = (makers[value] for value in node.input[:2])
        assert (image.op_type, tensors[image.input[2]].dtype) == ("DequantizeLinear", np.uint8)
        assert tensors[filters.input[0]].dtype == np.int8
        assert tensors[filters.input[1]].shape == tensors[filters.input[0]].shape[:1]


# The folder.


@pytest.mark.parametrize("model", ["squeezenet", pytest.param("digits_qdq", marks=slow)])
def test_preparing_again_gives_the_same_bytes(model: str, tmp_path: Path) -> None:
    first, second = (zoo.path(model, tmp_path / name).read_bytes() for name in "ab")

    assert first == second


def test_a_prepared_model_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TC_ZOO", str(tmp_path))
    file = zoo.path("softmax_12x128x128")
    written = file.stat().st_mtime_ns

    assert zoo.path("softmax_12x128x128") == file
    assert file.stat().st_mtime_ns == written
    assert tmp_path in file.parents


def prepare_and_hash(folder: str) -> str:
    return hashlib.sha256(zoo.path("shufflenet", folder).read_bytes()).hexdigest()


def test_processes_that_prepare_one_model_at_once_all_get_it_whole(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        hashes = set(pool.map(prepare_and_hash, [str(tmp_path)] * 8))

    assert len(hashes) == 1
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith(".")]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            zoo.path("softmax_12x128x128", tmp_path)

    assert not list(tmp_path.rglob("*.onnx"))
    assert zoo.path("softmax_12x128x128", tmp_path).exists()


def fake_pip(content: bytes, returncode: int = 0, stderr: str = "") -> object:
    """A `subprocess.run` that "downloads" a wheel whose every wanted file is `content`."""

    def download(command: tuple[str, ...], **_: object) -> subprocess.CompletedProcess[str]:
        if returncode == 0:
            with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / "package.whl", "w") as wheel:
                wheel.writestr(zoo.MAGIKA.file, content)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    return download


def test_a_file_with_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(b"something else"))

    with pytest.raises(zoo.ZooError, match=r"magika==1\.0\.3: .*model\.onnx has checksum .*, expected fe2d2eb"):
        zoo.path("magika", tmp_path)

    assert not list(tmp_path.rglob("*.onnx"))


def test_a_failed_download_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(b"", returncode=1, stderr="a\nERROR: no matching distribution\n"))

    with pytest.raises(zoo.ZooError, match=r"cannot download magika==1\.0\.3: ERROR: no matching distribution"):
        zoo.path("magika", tmp_path)


def test_the_command_prepares_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare = zoo.main(["softmax*", "--folder", str(tmp_path)])
    listing = zoo.main(["--list", "--folder", str(tmp_path)])

    output = capsys.readouterr().out
    assert (prepare, listing) == (0, 0)
    assert "prepared in" in output
    assert "not here yet" in output
    assert all(name in output for name in FILES)


def test_the_command_refuses_an_unknown_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = zoo.main(["nothing", "--folder", str(tmp_path)])

    assert code == 1
    assert "no model 'nothing'" in capsys.readouterr().err
