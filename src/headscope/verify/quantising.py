"""`hs.quantise_plan(model, file)`: which matrices of an ONNX file to keep in fp32 when it is quantised.

Every recipe is quantised by onnxruntime's `quantize_dynamic` and run over the texts, each alone. Its loss is 1 - the
mean cosine of the texts' vectors with those of the file in fp32. Needs the extra `onnx`.
"""

from __future__ import annotations

import logging
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.errors import CheckpointError, InputError, NotFoundError, UnsupportedError, first_line
from headscope.model import Model, open_model
from headscope.results.quantising import MatrixLoss, QuantisePlan, Recipe
from headscope.runs.texts import as_sentence
from headscope.settings import COSINE
from headscope.verify.onnx_run import OnnxRun, all_tensors, read_model
from headscope.verify.parity import check_texts
from headscope.verify.vectors import cost_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.results.explained import Pooling

    Vectors = Float[np.ndarray, "texts d"]

FILES = ("onnx/model.onnx", "model.onnx")
"""Places of a checkpoint's own export, where sentence-transformers and optimum write it."""
OPERATORS = ("MatMul", "Gather", "Attention")
"""Those with a stored matrix that `quantize_dynamic` quantises."""
VNNI = {"avx512_vnni", "avx_vnni"}
RECIPES = ("per tensor", "per channel")


def quantise_plan(
    model: str | os.PathLike[str] | Model,
    file: str | os.PathLike[str] | None = None,
    texts: Iterable[str] | None = None,
    *,
    cosine: float = COSINE,
    per_channel: bool = True,
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> QuantisePlan:
    """Rank the matrices of an ONNX file by what quantising each alone costs, and find the list to keep in fp32.

        plan = hs.quantise_plan("my-model", "model.onnx", cosine=0.995)
        quantize_dynamic(
            "model.onnx", "int8.onnx", weight_type=QuantType.QInt8, per_channel=plan.per_channel,
            nodes_to_exclude=plan.nodes_to_exclude,
        )

    Args:
        model: the checkpoint that the file was exported from: its tokenizer reads the texts, and its pooling makes the
            vectors.
        file: the export in fp32; by default `onnx/model.onnx` or `model.onnx` beside the weights.
        texts: the texts to measure on; by default twenty of mixed lengths.
        cosine: the mean cosine to reach, 0 to 1.
        per_channel: give every channel a scale of its own, which costs nothing; False to plan for processors or
            runtimes without it.
        max_length: cut texts to this many tokens; the model's own limit counts too.
        progress: called with the files that were run, and with the least number of all.

    Raises:
        InputError: there is no text, or `cosine` is not between 0 and 1.
        NotFoundError: there is no such file, or none beside the weights.
        CheckpointError: the file is damaged, or can't be quantised.
        UnsupportedError: it has no matrix in fp32 that could be quantised.
        MissingExtraError: onnx or onnxruntime is not installed.
    """
    checked = check_texts(texts, 0)
    if not isinstance(cosine, (int, float)) or not 0 < cosine <= 1:
        raise InputError(f"cosine is {cosine!r:.40}", where="cosine", advice="use a number above 0, at most 1")
    opened = open_model(model)
    path = _beside(opened) if file is None else Path(file)
    graph = read_model(path)
    nodes = list(matrices(graph.graph))
    if not nodes:
        raise UnsupportedError(
            f"no {', '.join(OPERATORS)} has a matrix in fp32",
            where=str(path),
            advice="name the export in fp32, as it was before it was quantised or converted",
        )
    encoded = [as_sentence(opened, text, max_length=max_length).encoded for text in checked]
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(path, graph, encoded, opened.pooling, Path(folder))
        return _planned(trial, nodes, cosine, per_channel, progress or (lambda done, least: None))


def _planned(
    trial: Trial, nodes: list[MatrixLoss], cosine: float, per_channel: bool, progress: Callable[[int, int], None]
) -> QuantisePlan:
    """Measure both recipes, every matrix, and beginnings of the ranking."""
    recipes = []
    for at, name in enumerate(RECIPES):
        recipes.append(trial.recipe(name, per_channel=bool(at)))
        progress(at + 1, len(nodes) + 2)
    ranked = []
    for at, node in enumerate(nodes):
        alone = trial.recipe(node.node, per_channel=per_channel, nodes_to_quantize=[node.node])
        ranked.append(replace(node, loss=1 - alone.cosine))
        progress(at + 3, len(nodes) + 2)
    ranked.sort(key=lambda node: -node.loss)
    names = [node.node for node in ranked]

    def kept(count: int) -> Recipe:
        if not count:
            return recipes[per_channel]
        return trial.recipe("plan", per_channel=per_channel, nodes_to_exclude=names[:count])

    count, plan = shortest(kept, [node.loss for node in ranked], cosine)
    processor, vnni = processor_of(Path("/proc/cpuinfo"))
    return QuantisePlan(
        file=str(trial.path),
        size=trial.size,
        target=cosine,
        per_channel=per_channel,
        recipes=(*recipes, plan) if count else tuple(recipes),
        matrices=tuple(replace(node, kept=at < count) for at, node in enumerate(ranked)),
        reached=plan.cosine >= cosine,
        texts=len(trial.texts),
        processor=processor,
        vnni=vnni,
    )


def shortest(kept: Callable[[int], Recipe], losses: Sequence[float], cosine: float) -> tuple[int, Recipe]:
    """The smallest number of matrices to keep that reaches a mean cosine, and its recipe; all if none does.

    Losses nearly add, so the search begins where their sum would do.

    Args:
        kept: measures the recipe that keeps the first n matrices.
        losses: of each matrix alone, the greatest first.
        cosine: the mean cosine to reach.
    """
    recipe = kept(0)
    if recipe.cosine >= cosine:
        return 0, recipe
    left = 1 - np.cumsum(np.maximum(losses, 0)) / max(float(np.maximum(losses, 0).sum()), 1e-30)
    count = 1 + int(np.argmax((1 - recipe.cosine) * left <= 1 - cosine))
    recipe = kept(count)
    while recipe.cosine >= cosine and count > 1 and (shorter := kept(count - 1)).cosine >= cosine:
        count, recipe = count - 1, shorter
    while recipe.cosine < cosine and count < len(losses):
        count += 1
        recipe = kept(count)
    return count, recipe


class Trial:
    """Quantises a file in some ways, and compares its vectors with those in fp32.

    Args:
        path: the file.
        graph: its graph.
        texts: the texts' tokens.
        pooling: makes vectors of them.
        folder: for files that are written.

    Attributes:
        size: bytes of the file and of its external data.
    """

    def __init__(self, path: Path, graph: Any, texts: list[Encoded], pooling: Pooling, folder: Path) -> None:
        self.path, self.texts, self._pooling, self._folder = path, texts, pooling, folder
        entries = (entry for tensor in all_tensors(graph.graph) for entry in tensor.external_data)
        outside = {entry.value for entry in entries if entry.key == "location"}
        self._external = bool(outside)
        self.size = sum(one.stat().st_size for one in (path, *(path.parent / name for name in outside)))
        self._fp32 = self._vectors(graph, path)

    def recipe(self, name: str, **options: Any) -> Recipe:
        """Quantise the file with these options of `quantize_dynamic`, and measure it.

        Raises:
            CheckpointError: it can't be quantised.
        """
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = self._folder / "int8.onnx"
        try:
            with _quiet():
                options["use_external_data_format"] = self._external
                quantize_dynamic(self.path, path, weight_type=QuantType.QInt8, **options)
        except Exception as error:  # its errors have no common class
            raise CheckpointError(
                f"quantize_dynamic can't quantise the file: {first_line(error)}"[:500],
                where=str(self.path),
                advice="export it again with opset 17",
            ) from error
        cosines = cost_of(self._fp32, self._vectors(read_model(path), path)).cosines
        written = list(self._folder.iterdir())
        size = sum(one.stat().st_size for one in written)
        for one in written:
            one.unlink()
        return Recipe(name, float(cosines.mean()), float(cosines.min()), size)

    def _vectors(self, graph: Any, path: Path) -> Vectors:
        """Every text's vector."""
        run = OnnxRun(graph, path, [value.name for value in graph.graph.output])
        outputs = (run.outputs(np.array(text.ids), np.array(text.segments)) for text in self.texts)
        return np.stack(
            [run.vector(one, self._pooling, text.prompt) for one, text in zip(outputs, self.texts, strict=True)]
        )


def matrices(graph: Any) -> Iterator[MatrixLoss]:
    """The nodes of a graph that `quantize_dynamic` can quantise, without their losses.

    Raises:
        UnsupportedError: two have the same name, or one has none: they can't be listed.
    """
    stored = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer if tensor.data_type == 1}  # fp32
    names = set[str]()
    for node in graph.node:
        at = 0 if node.op_type == "Gather" else 1
        shape = stored.get(node.input[at], ()) if len(node.input) > at else ()
        if node.op_type not in OPERATORS or len(shape) < 2:
            continue
        if not node.name or node.name in names:
            raise UnsupportedError(
                f"the {node.op_type} that makes {node.output[0]} has no name of its own: {node.name!r:.80}",
                where="nodes_to_exclude",
                advice="export the model again: torch.onnx.export names every node",
            )
        names.add(node.name)
        yield MatrixLoss(node.name, node.op_type, shape, 0.0, kept=False)


def _beside(model: Model) -> Path:
    """The export beside a checkpoint's weights.

    Raises:
        NotFoundError: there is none.
    """
    for name in FILES:
        if (path := model.checkpoint.file(name)) is not None:
            return Path(path)
    raise NotFoundError(
        f"{called(model.name)} has no {' or '.join(FILES)} beside its weights",
        where=model.checkpoint.where,
        advice="name its export: headscope parity MODEL model.onnx --quantise plan",
    )


def processor_of(info: Path) -> tuple[str, bool | None]:
    """The processor's name, and True if it has VNNI instructions; None where nothing says so.

    Args:
        info: Linux's list of processors.
    """
    try:
        lines = [line.partition(":") for line in info.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    name = fields.get("model name") or platform.processor() or platform.machine() or "an unknown processor"
    flags = set(fields.get("flags", "").split())
    return name, bool(flags & VNNI) if flags else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence quantize_dynamic, which warns on the root logger about every file."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
