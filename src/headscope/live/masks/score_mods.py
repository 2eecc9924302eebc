"""Read what a score_mod of flex attention does, from the operators that it is made of.

A score_mod is any function of a score and its place. Its graph of operators shows the score's path: if all that happens
on it are constant factors, additions of numbers that depend only on the place, one soft cap and masks of -inf, then the
function is

    c tanh((factor * score + bias[b, h, i, j]) / c),    -inf where a mask says so

for every score, and score terms express it. Anything else on the path raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from headscope.errors import UnsupportedError

aten = torch.ops.aten

UNCHANGED = frozenset({aten.clone.default, aten.detach.default, aten.alias.default})
CASTS = frozenset({aten._to_copy.default, aten.to.dtype})
ADDS = frozenset({aten.add.Tensor, aten.add.Scalar})
SUBTRACTS = frozenset({aten.sub.Tensor, aten.sub.Scalar})
MULTIPLIES = frozenset({aten.mul.Tensor, aten.mul.Scalar})
DIVIDES = frozenset({aten.div.Tensor, aten.div.Scalar})

ADVICE = (
    "capture reads score_mods that multiply a score by a constant, add numbers that depend on the place, apply one "
    "soft cap c * tanh(score / c) after that, and mask with -inf: write it with these operators, or attend without "
    'flex_attention (in transformers: model.set_attn_implementation("sdpa"))'
)

Place = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of one place: row of the batch, head, query, key, each a tensor without axes."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """Steps of a score_mod after scale * q . k, in this order.

    Attributes:
        factor: multiplies the score.
        bias: is added; None if nothing is.
        cap: the soft cap, if there is one.
        allowed: conditions under which a cell is not masked.
    """

    factor: float = 1.0
    bias: Place | None = None
    cap: float | None = None
    allowed: tuple[Place, ...] = ()


def read(score_mod: Callable[..., torch.Tensor], buffers: tuple[Any, ...], device: torch.device, where: str) -> Scoring:
    """Read a score_mod.

    Args:
        score_mod: the function of (score, row of the batch, head, query, key, *buffers).
        buffers: tensors that a graph passes to it.
        device: where it runs.
        where: the module's name, for errors.

    Raises:
        UnsupportedError: it does something else than score terms express.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    score = torch.zeros((), device=device)
    places = [torch.zeros((), dtype=torch.int32, device=device) for _ in range(4)]
    try:
        with torch.no_grad(), TransformGetItemToIndex():
            graph = make_fx(lambda *given: score_mod(*given))(score, *places, *buffers)
    except RuntimeError as error:
        raise UnsupportedError(
            f"a score_mod's operators can't be read: {str(error).splitlines()[0]}", where=where, advice=ADVICE
        ) from error
    return _Path(graph, (score, *places, *buffers), where).scoring()


@dataclass(frozen=True, eq=False)
class _Form:
    """The score at one point of its path.

    Attributes:
        factor: of the score.
        added: numbers that were added, each with its factor.
        cap: factor of the tanh, if the path has passed one; `factor` and `added` are those inside it.
        masks: conditions, each with True if it keeps cells, or False if it masks them.
    """

    factor: float = 1.0
    added: tuple[tuple[float, Any], ...] = ()
    cap: float | None = None
    masks: tuple[tuple[Node, bool], ...] = ()

    def times(self, number: float) -> _Form:
        if self.cap is not None:
            return replace(self, cap=self.cap * number)
        added = tuple((number * factor, term) for factor, term in self.added)
        return replace(self, factor=self.factor * number, added=added)

    def plus(self, number: float, term: Any) -> _Form:
        return replace(self, added=(*self.added, (number, term)))


class _Path:
    """The path of the score through a graph.

    Args:
        graph: the score_mod's operators.
        examples: its arguments.
        where: the module's name.
    """

    def __init__(self, graph: GraphModule, examples: tuple[Any, ...], where: str) -> None:
        self._graph = graph
        self._examples = examples
        self._where = where
        self._forms: dict[Node, _Form] = {}
        self._placed: set[Node] = set()

    def scoring(self) -> Scoring:
        """Follow the path to the output."""
        form = None
        for at, node in enumerate(self._graph.graph.nodes):
            inputs = node.all_input_nodes
            if node.op == "placeholder" and at == 0:
                self._forms[node] = _Form()
            elif node.op == "placeholder" and at < 5:
                self._placed.add(node)
            elif node.op == "output":
                form = self._forms.get(node.args[0])
            elif any(source in self._forms for source in inputs):
                self._forms[node] = self._after(node)
            elif any(source in self._placed for source in inputs):
                self._placed.add(node)
        if form is None or form.factor == 0:
            self._refuse("its result doesn't depend on the score")
        cap = form.cap
        if cap is not None and not cap > 0:
            self._refuse(f"its soft cap is {cap}")
        outer = 1.0 if cap is None else cap
        added = [(outer * factor, self._place(term)) for factor, term in form.added]
        allowed = tuple(_kept(self._place(node), keeps) for node, keeps in form.masks)
        return Scoring(outer * form.factor, _sum(added) if added else None, cap, allowed)

    def _after(self, node: Node) -> _Form:
        """The score after an operator on its path."""
        target, args = node.target, node.args
        scores = [arg for arg in args if isinstance(arg, Node) and arg in self._forms]
        name = str(target).removesuffix(".default")
        if len(scores) != 1:
            self._refuse(f"it {'uses the score several times, in' if scores else 'changes the score with'} {name}")
        form, first = self._forms[scores[0]], args[0] is scores[0]
        other = args[1 if first else 0] if len(args) > 1 else None
        alpha = float(node.kwargs.get("alpha", 1))  # type: ignore[arg-type]
        if target in UNCHANGED:
            return form
        if target in CASTS and self._floating(node):
            return form
        if target in ADDS | SUBTRACTS and form.cap is None:
            sign = alpha if target in ADDS else -alpha
            if first:
                return form.plus(sign, other)
            if alpha == 1 and target in ADDS:
                return form.plus(1.0, other)
            if alpha == 1 and not form.masks:
                return form.times(-1.0).plus(1.0, other)
        if target in MULTIPLIES or (target in DIVIDES and first and not node.kwargs):
            number = self._number(other)
            if number is not None and number != 0 and (number > 0 or not form.masks):
                return form.times(number if target in MULTIPLIES else 1 / number)
        if target is aten.neg.default and not form.masks:
            return form.times(-1.0)
        if target is aten.tanh.default and form.cap is None and not form.masks:
            return replace(form, cap=1.0)
        if target is aten.where.self and args[0] not in scores:
            kept = args[1] is scores[0]
            if self._number(args[2 if kept else 1]) == float("-inf"):
                return replace(form, masks=(*form.masks, (args[0], kept)))  # type: ignore[arg-type]
        if target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor) and self._number(args[2]) == float("-inf"):
            return replace(form, masks=(*form.masks, (args[1], False)))  # type: ignore[arg-type]
        after = " after its soft cap" if form.cap is not None else " after a mask" if form.masks else ""
        return self._refuse(f"it changes the score with {name}{after}")

    def _floating(self, node: Node) -> bool:
        dtype = node.kwargs.get("dtype", node.args[1] if len(node.args) > 1 else None)
        return dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)

    def _number(self, term: Any) -> float | None:
        """The value of a constant; None if it depends on the place, or on the score."""
        if not isinstance(term, Node):
            return float(term) if isinstance(term, (int, float)) else None
        if term in self._forms or term in self._placed:
            return None
        value = self._function(term)(*self._examples)
        return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else None

    def _place(self, term: Any) -> Place:
        """A term as a function of the place."""
        if not isinstance(term, Node):
            return lambda b, h, i, j: torch.full((), float(term), device=b.device)
        if term in self._forms:
            self._refuse("it uses the score several times")
        function, score, buffers = self._function(term), self._examples[0], self._examples[5:]
        return lambda b, h, i, j: function(score, b, h, i, j, *buffers)

    def _function(self, node: Node) -> Callable[..., torch.Tensor]:
        """The part of the graph that computes a node."""
        graph, copies = Graph(), dict[Node, Node]()
        for each in self._graph.graph.nodes:
            if each.op != "output":
                copies[each] = graph.node_copy(each, copies.__getitem__)
        graph.output(copies[node])
        graph.eliminate_dead_code()
        return GraphModule(self._graph, graph)

    def _refuse(self, reason: str) -> NoReturn:
        raise UnsupportedError(
            f"a score_mod of flex attention is not a sum of score terms: {reason}", where=self._where, advice=ADVICE
        )


def _sum(parts: list[tuple[float, Place]]) -> Place:
    def bias(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        first, *others = (part(b, h, i, j) * factor for factor, part in parts)
        return sum(others, first).float()

    return bias


def _kept(condition: Place, keeps: bool) -> Place:
    return condition if keeps else lambda b, h, i, j: ~condition(b, h, i, j)
