"""The record of a plan for int8: what each matrix of an ONNX file costs, and the shortest list to keep in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MatrixLoss:
    """A node of the graph, quantised alone.

    Attributes:
        node: its name.
        operator: its type, such as MatMul.
        shape: of its matrix.
        loss: 1 - mean cosine of the texts' vectors with those of the file in fp32.
        kept: True if the plan keeps it in fp32.
    """

    node: str
    operator: str
    shape: tuple[int, ...]
    loss: float
    kept: bool


@dataclass(frozen=True)
class Recipe:
    """A way of quantising the whole file.

    Attributes:
        name: `per tensor`, `per channel`, or `plan`: with the nodes of the plan in fp32.
        cosine: mean cosine of the texts' vectors with those of the file in fp32.
        worst: the smallest of them.
        size: bytes of the file.
    """

    name: str
    cosine: float
    worst: float
    size: int


@dataclass(frozen=True, repr=False)
class QuantisePlan:
    """The shortest list of matrices to keep in fp32, so that an int8 file reaches a mean cosine.

    The list is the beginning of the ranking: each shorter beginning was tried and falls short. Losses of single
    matrices nearly add, but they are not added here: every recipe was quantised and run.

    Attributes:
        file: the ONNX file.
        size: its bytes.
        target: the mean cosine to reach.
        per_channel: True if the ranking and the plan are of matrices with a scale for each channel.
        recipes: both whole recipes, and the plan if it has a list.
        matrices: the greatest loss first.
        reached: False if not even keeping every matrix reaches the target.
        texts: the number of texts.
        processor: the one that it was measured on.
        vnni: True if it has VNNI instructions, without which sums of int8 products may saturate; None if unknown.
    """

    file: str
    size: int
    target: float
    per_channel: bool
    recipes: tuple[Recipe, ...]
    matrices: tuple[MatrixLoss, ...]
    reached: bool
    texts: int
    processor: str
    vnni: bool | None

    @property
    def nodes_to_exclude(self) -> list[str]:
        """The list, as `quantize_dynamic` takes it."""
        return [matrix.node for matrix in self.matrices if matrix.kept]

    def sentence(self) -> str:
        """The answer in one sentence."""
        way = f"per_channel={self.per_channel}"
        whole = self.recipes[self.per_channel]
        if not self.reached:
            return f"a mean cosine of {self.target:g} is out of reach, even with every matrix in fp32"
        if not self.nodes_to_exclude:
            return f"{way} alone gives a mean cosine of {whole.cosine:.4f}: nothing has to stay in fp32"
        kept, plan = len(self.nodes_to_exclude), self.recipes[-1]
        return (
            f"keep {kept} of {len(self.matrices)} matrices in fp32, with {way}: mean cosine {plan.cosine:.4f} at "
            f"{plan.size / 1e6:.0f} MB, instead of {whole.cosine:.4f} at {whole.size / 1e6:.0f} MB"
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as a dict for JSON."""
        return {
            "sentence": self.sentence(),
            "nodes_to_exclude": self.nodes_to_exclude,
            **vars(self),
            "recipes": [dict(vars(recipe)) for recipe in self.recipes],
            "matrices": [{**vars(matrix), "shape": list(matrix.shape)} for matrix in self.matrices],
        }

    def __repr__(self) -> str:
        return f"{self.file}: {self.sentence()}"
