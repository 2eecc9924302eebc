"""Attention in an ONNX graph: where its weights are or what they follow from, and the residual stream around it.

Forms: MatMul, Softmax, MatMul with anything between them (exports of eager and SDPA attention, by TorchScript and
dynamo, dynamically quantised and QDQ); `Attention` of opset 23; onnxruntime's `Attention`, `QAttention` and
`MultiHeadAttention`. The residual sum is the first Add after an attention whose other term is no constant: that term
is the layer's input. onnxruntime's `SkipLayerNormalization` has both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headscope.errors import UnsupportedError

FUSED = {("", "Attention"), ("com.microsoft", "Attention"), ("com.microsoft", "QAttention"),
         ("com.microsoft", "MultiHeadAttention")}  # fmt: skip
SKIP_NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
PRODUCTS = ("MatMul", "FusedMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "Einsum")
SHAPES = ("Shape", "Size")
ADVICE = "export the model again with torch.onnx.export, or save its vectors and compare those"


@dataclass(frozen=True)
class Attention:
    """One attention of a graph.

    Attributes:
        kind: `softmax`, or the name of a fused operator, with its domain.
        node: the Softmax, or the fused operator.
        weights: the tensor that holds the weights; empty if they follow from the operator's inputs.
        into: the residual stream that the attention's output is added to.
        summed: the sum.
    """

    kind: str
    node: Any
    weights: str
    into: str
    summed: str


class Graph:
    """A graph with its producers and consumers.

    Args:
        graph: an onnx.GraphProto.
        where: the file, for messages.
    """

    def __init__(self, graph: Any, where: str) -> None:
        self.graph, self._where = graph, where
        self._producer = {name: node for node in graph.node for name in node.output}
        self._consumers: dict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._consumers[name].append(node)
        self._constant: dict[str, bool] = {tensor.name: True for tensor in graph.initializer}
        self._constant |= {value.name: False for value in graph.input if value.name not in self._constant}

    def attentions(self) -> list[Attention]:
        """All attentions, in the graph's order.

        Raises:
            UnsupportedError: there is none, or one of a form that headscope doesn't read; the message names it.
        """
        found = []
        for node in self.graph.node:
            kind = (node.domain if node.domain != "ai.onnx" else "", node.op_type)
            if kind in FUSED:
                found.append(self._fused(node, "/".join(filter(None, kind))))
            elif node.op_type == "Softmax" and self._is_attention(node):
                product = self._next(node.output[0], PRODUCTS)
                into, summed = self._residual(product, product.output[0])
                found.append(Attention("softmax", node, node.output[0], into, summed))
            elif "Attention" in node.op_type:
                raise UnsupportedError(
                    f"headscope doesn't read the operator {node.op_type} (node {node.name or node.output[0]})",
                    where=self._where,
                    advice=ADVICE,
                )
        if not found:
            kinds = sorted({node.op_type for node in self.graph.node})
            raise UnsupportedError(
                f"no attention was found: no Softmax stands between two products; the graph has {', '.join(kinds)}"[
                    :400
                ],
                where=self._where,
                advice=ADVICE,
            )
        return found

    def _fused(self, node: Any, kind: str) -> Attention:
        """A fused operator; the one of opset 23 is changed to give its weights."""
        weights = ""
        if kind == "Attention":
            weights = node.output[3] if len(node.output) > 3 and node.output[3] else f"{node.output[0]}_weights"
            node.output.extend([""] * (4 - len(node.output)))
            node.output[3] = weights
            others = [one for one in node.attribute if one.name != "qk_matmul_output_mode"]
            del node.attribute[:]
            node.attribute.extend(others)
            mode = node.attribute.add()
            mode.name, mode.type, mode.i = "qk_matmul_output_mode", 2, 3  # an INT: after the softmax
        into, summed = self._residual(node, node.output[0])
        return Attention(kind, node, weights, into, summed)

    def _is_attention(self, softmax: Any) -> bool:
        """Return True if a Softmax's input comes from a product of two activations, and its output goes into one."""
        product = self._next(softmax.output[0], PRODUCTS)
        if product is None:
            return False
        ahead, seen = [softmax.input[0]], set[int]()
        while ahead:
            node = self._producer.get(ahead.pop())
            if node is None or id(node) in seen or node.op_type in SHAPES:
                continue
            seen.add(id(node))
            if node.op_type in PRODUCTS:
                return not any(map(self._is_constant, node.input[:2]))
            ahead += node.input
        return False

    def _next(self, tensor: str, kinds: tuple[str, ...]) -> Any:
        """The first node of some kinds that a tensor goes into, through others; None if there is none nearby."""
        for node, _ in self._forward(tensor, most=12):
            if node.op_type in kinds:
                return node
        return None

    def _residual(self, node: Any, tensor: str) -> tuple[str, str]:
        """The residual stream and its sum with what an attention writes.

        Raises:
            UnsupportedError: no sum was found.
        """
        last = node.op_type
        for after, through in self._forward(tensor, most=60):
            last = after.op_type
            others = [name for name in after.input[:2] if name != through]
            if after.op_type in SKIP_NORMS:
                after.output.extend([""] * (4 - len(after.output)))
                after.output[3] = after.output[3] or f"{after.output[0]}_sum"
                return others[0], after.output[3]
            if after.op_type in ("Add", "Sum") and len(others) == 1 and not self._is_constant(others[0]):
                return others[0], after.output[0]
        raise UnsupportedError(
            f"the output of the attention {node.name or node.output[0]} isn't added to a residual stream; the last "
            f"operator after it was {last}",
            where=self._where,
            advice=ADVICE,
        )

    def _forward(self, tensor: str, *, most: int) -> Iterator[tuple[Any, str]]:
        """The nodes that a tensor goes into, the nearest first, each with the tensor by which it is reached."""
        ahead, seen = [tensor], set[int]()
        while ahead and len(seen) < most:
            name = ahead.pop(0)
            for node in self._consumers[name]:
                if id(node) not in seen and node.op_type not in SHAPES:
                    seen.add(id(node))
                    yield node, name
                    ahead.append(node.output[0])

    def _is_constant(self, tensor: str) -> bool:
        """Return True if a tensor depends on no input of the graph."""
        stack = [tensor]
        while stack:
            name = stack[-1]
            if name in self._constant:
                stack.pop()
                continue
            node = self._producer.get(name)
            inputs = [] if node is None else [one for one in node.input if one]
            waiting = [one for one in inputs if one not in self._constant]
            if waiting:
                stack += waiting
            else:
                self._constant[name] = all(self._constant[one] for one in inputs)
                stack.pop()
        return self._constant[tensor]
