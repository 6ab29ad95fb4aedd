"""What a file is that was given for a model and is none: said by name, since "wire type 4" helps nobody."""

from __future__ import annotations

_LFS = b"version https://git-lfs.github.com/spec/"
_STARTS = {
    _LFS: "a Git LFS pointer, not the file that it stands for: 'git lfs pull' fetches that",
    b"tcmodule": "a module that tc has compiled already: tc.load and tc run take it",
    b"PK\x03\x04": "a zip archive, as PyTorch's .pt and numpy's .npz files are: export the model to ONNX, or unpack it",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "compressed by gzip: unpack it",
    b"\x93NUMPY": "a numpy array, not a model: 'tc run MODEL --input NAME=FILE.npy' takes it",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes: convert the model to ONNX",
    b"GGUF": "a GGUF file: convert the model to ONNX",
}
_AT_4 = {b"TFL3": "a TensorFlow Lite model: convert it to ONNX", b"ORTM": "an ONNX Runtime .ort model: take the ONNX file it was made from"}
_MARKUP = {
    (b"<!doctype html", b"<html", b"<head"): "an HTML page, perhaps what a server answered instead of the file: download it again",
    (b"<?xml", b"<net"): "an XML file; an OpenVINO model cannot be read, the ONNX file it was made from can",
}
_LOOKED_AT_BYTES = 512


def foreign_format(data: bytes | memoryview) -> str | None:
    """What data that begin like this are, and what to do about it; None when they may be a model."""
    head = bytes(data[:_LOOKED_AT_BYTES])
    for start, name in _STARTS.items():
        if head.startswith(start):
            return name
    if head[4:8] in _AT_4:
        return _AT_4[head[4:8]]
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return next((name for starts, name in _MARKUP.items() if text.startswith(starts)), None)


def is_lfs_pointer(data: bytes | memoryview) -> bool:
    """Whether this is what Git LFS leaves in the place of a large file."""
    return bytes(data[: len(_LFS)]) == _LFS
