"""Formats of weight files, by name and by first bytes: those that headscope reads, and those it only recognises."""

from __future__ import annotations

from headscope.checkpoint.raw_files import Source
from headscope.errors import CheckpointError

PREFERENCE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""File names of a whole checkpoint; the first that exists is opened."""

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
"""Suffixes of other libraries' weight files -> the library or format."""

PACKED_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".gz")

LONGEST_HEADER = 100_000_000
"""Maximum length of a header in safetensors, in bytes."""

TRACE_FORMAT = "headscope.trace"
"""Value of `format` in the safetensors metadata of a trace."""

DAMAGED = "the file is truncated or damaged: download or copy it again"
LFS_POINTER = b"version https://git-lfs"
LOAD = "with transformers 4.49 and {}, load it in config.json's class with from_pretrained({}), and save that"
FROM_TF = LOAD.format("TensorFlow", "folder, from_tf=True")
CONVERT = {
    ".h5": FROM_TF,
    ".ckpt": LOAD.format("TensorFlow", "the path of the .ckpt.index, from_tf=True, config=config"),
    ".msgpack": LOAD.format("Flax", "folder, from_flax=True"),
}
"""Suffix of another library's weights -> the advice. transformers 4.57 leaves such weights on the meta device."""
RENAME = "rename it to {name}, or download the file again"
AGAIN = "download the file again"
FIRST_BYTES = (
    (b"PK\3\4", "a zip archive, as torch.save writes it", RENAME.format(name="pytorch_model.bin")),
    (b"\x80\2", "a pickle, as torch.save wrote it before 1.6", RENAME.format(name="pytorch_model.bin")),
    (b"\x1f\x8b", "a gzip archive", "unpack it"),
    (b"\x89HDF\r\n", "an HDF5 file, as TensorFlow writes it", f"rename it to tf_model.h5; {FROM_TF}"),
    (b"GGUF", "a GGUF file", "download the model as model.safetensors"),
    (b"<", "a web page", f"{AGAIN}: the server sent a web page instead"),
    (b"{", "JSON text", AGAIN),
)
"""First bytes of files with another format's name, their real format, and the advice."""


def foreign_kind(name: str) -> str | None:
    """Return the library or format of another library's weight file, by its name; None for all other files."""
    return next((kind for suffix, kind in FOREIGN_SUFFIXES.items() if name.endswith(suffix)), None)


def of_safetensors(head: bytes) -> bool:
    """Return True if these first 9 bytes are a safetensors file's; those of some lengths are a pickle's, too."""
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LONGEST_HEADER


def damaged(source: Source, problem: str, advice: str = DAMAGED) -> CheckpointError:
    """The error for a weight file that can't be read."""
    return CheckpointError(problem, where=source.where, advice=advice)


def check_first_bytes(source: Source, expected: str) -> None:
    """Check that the first bytes of a file don't belong to a format other than the expected one.

    Args:
        source: a file that can't be read in the format of its name.
        expected: that format, such as "a safetensors file".

    Raises:
        CheckpointError: it is a file of another known format, a web page, or a Git LFS pointer.
    """
    head = source.read(0, min(source.size, len(LFS_POINTER)))
    if head.startswith(LFS_POINTER):
        raise damaged(source, "this is a Git LFS pointer, not the weights", "run `git lfs pull` in that folder")
    kind, advice = next(((kind, advice) for start, kind, advice in FIRST_BYTES if head.startswith(start)), (None, ""))
    if of_safetensors(head):
        kind, advice = "a safetensors file", RENAME.format(name="model.safetensors")
    if kind is not None and kind != expected:
        raise damaged(source, f"this is {kind}, not {expected}", advice)
