"""Formats of weights, by a file's name and by its first bytes: those that are read, and those refused by name."""

from __future__ import annotations

from headscope.checkpoint.source import Source
from headscope.errors import CheckpointError

PREFERENCE = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""The names that stand for a whole checkpoint, the first one there is opened."""

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")

FOREIGN_SUFFIXES = {
    ".h5": "TensorFlow",
    ".keras": "Keras",
    ".msgpack": "Flax",
    ".onnx": "ONNX",
    ".gguf": "GGUF",
    ".ot": "rust-bert",
    ".ckpt.index": "TensorFlow",
    ".ckpt.meta": "TensorFlow",
    ".data-00000-of-00001": "TensorFlow",
    "saved_model.pb": "TensorFlow",
    ".tflite": "TensorFlow Lite",
    ".npz": "NumPy",
    "openvino_model.bin": "OpenVINO",
    ".mlmodel": "Core ML",
    ".mlpackage/": "Core ML",
}
"""How the names of weights end that other libraries wrote."""

PACKED_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".gz")

LONGEST_HEADER = 100_000_000
"""The most bytes that safetensors allows a header."""

TRACE_FORMAT = "headscope.trace"
"""What a trace's safetensors metadata calls its format."""

LFS_POINTER = b"version https://git-lfs"
RENAME = "rename it to {name}, or get the file again"
AGAIN = "get the file again"
FIRST_BYTES = (
    (b"PK\3\4", "a zip archive, as torch.save writes it", RENAME.format(name="pytorch_model.bin")),
    (b"\x80\2", "a pickle, as torch.save wrote it before 1.6", RENAME.format(name="pytorch_model.bin")),
    (b"\x1f\x8b", "packed by gzip", "unpack it"),
    (b"\x89HDF\r\n", "an HDF5 file, as TensorFlow writes it", "save the model from TensorFlow as model.safetensors"),
    (b"GGUF", "a GGUF file", "get the model as model.safetensors"),
    (b"<", "a page of a web site", f"{AGAIN}: the address that it came from answered with a page"),
    (b"{", "JSON text", AGAIN),
)
"""How files begin that go by another format's name, what they are, and what to do."""


def foreign_kind(name: str) -> str | None:
    """The library or format whose weights are in a file of this name; None for all others."""
    return next((kind for suffix, kind in FOREIGN_SUFFIXES.items() if name.endswith(suffix)), None)


def check_first_bytes(source: Source, expected: str) -> None:
    """Refuse a file whose first bytes say that it is something else than its name says.

    Args:
        source: a file that can't be read by its name's format.
        expected: what its name says, such as "a safetensors file".

    Raises:
        CheckpointError: it is a file of another known format, a page, or a Git LFS pointer.
    """
    head = source.read(0, min(source.size, len(LFS_POINTER)))
    if head.startswith(LFS_POINTER):
        raise CheckpointError(
            "this is a Git LFS pointer, not the weights",
            where=source.where,
            advice="run `git lfs pull` in that folder",
        )
    found = next(((kind, advice) for start, kind, advice in FIRST_BYTES if head.startswith(start)), None)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LONGEST_HEADER:
        found = "a safetensors file", RENAME.format(name="model.safetensors")
    if found is not None and found[0] != expected:
        raise CheckpointError(f"this is {found[0]}, not {expected}", where=source.where, advice=found[1])
