"""The masks and score_mods of flex attention, read as masks and score terms.

A block mask is a function of a place, mask_mod, and lists of the blocks of the map that hold allowed cells. Compiled
kernels visit the listed blocks only; PyTorch's uncompiled form asks mask_mod alone. Both must agree, which is checked
for every cell.

A score_mod is read from the operators that it is made of. It is any function of a score and its place. Its graph of
operators shows the score's path: if all that happens on it are constant factors, additions of numbers that depend only
on the place, one soft cap and masks of -inf, then the function is

    c tanh((factor * score + bias[b, h, i, j]) / c),    -inf where a mask says so

for every score, and score terms express it. Anything else on the path raises an error.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from headscope.errors import UnsupportedError
from headscope.live.masks.analyst import Deferred, RawMask
from headscope.live.masks.cells import Cells
from headscope.live.masks.guess import NEGLIGIBLE
from headscope.live.progress import is_plain

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

CellFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
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
    bias: CellFunction | None = None
    cap: float | None = None
    allowed: tuple[CellFunction, ...] = ()


def read_score_mod(
    score_mod: Callable[..., torch.Tensor], buffers: tuple[Any, ...], device: torch.device, where: str
) -> Scoring:
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

    places = [torch.zeros(1, dtype=torch.int32, device=device) for _ in range(4)]
    try:
        with torch.no_grad(), TransformGetItemToIndex():
            given = torch.zeros((), device=device), *(place[0] for place in places), *buffers
            path = _Path(make_fx(lambda *given: score_mod(*given))(*given), buffers, where)
            form = path.followed(places)
    except RuntimeError as error:
        raise UnsupportedError(
            f"a score_mod's operators can't be read: {str(error).splitlines()[0]}", where=where, advice=ADVICE
        ) from error
    if not isinstance(form, _Form) or form.factor == 0:
        path.refuse("its result doesn't depend on the score")
    if form.cap is not None and not form.cap > 0:
        path.refuse(f"its soft cap is {form.cap}")
    outer = 1.0 if form.cap is None else form.cap
    bias = partial(path.bias, outer) if form.added else None
    return Scoring(outer * form.factor, bias, form.cap, allowed=(path.allowed,) if form.masks else ())


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
    masks: tuple[tuple[torch.Tensor, bool], ...] = ()

    def times(self, number: float) -> _Form:
        if self.cap is not None:
            return replace(self, cap=self.cap * number)
        added = tuple((number * factor, term) for factor, term in self.added)
        return replace(self, factor=self.factor * number, added=added)

    def plus(self, number: float, term: Any) -> _Form:
        return replace(self, added=(*self.added, (number, term)))


class _Path(Interpreter):
    """The path of the score through a graph: it is a `_Form` all along, and all else is computed.

    Args:
        graph: the score_mod's operators.
        buffers: the arguments after the place.
        where: the module's name.
    """

    def __init__(self, graph: GraphModule, buffers: tuple[Any, ...], where: str) -> None:
        super().__init__(graph)
        self.extra_traceback = False
        self._buffers = buffers
        self._where = where

    def after(self, *place: torch.Tensor) -> Any:
        """The result of the score_mod at a place: a form, or a number if it doesn't depend on the score."""
        return self.run(_Form(), *place, *self._buffers)

    def followed(self, places: list[torch.Tensor]) -> Any:
        """The result where torch.vmap tells what depends on the place from constants; places are of one axis each."""
        forms: list[Any] = []

        def follow(*place: torch.Tensor) -> torch.Tensor:
            forms.append(self.after(*place))
            return place[0]

        torch.vmap(follow)(*places)
        return forms[0]

    def bias(self, outer: float, *place: torch.Tensor) -> torch.Tensor:
        """The sum of what is added to the score at a place, times a factor."""
        added = self.after(*place).added
        first, *others = (_tensor(term, place) * (outer * factor) for factor, term in added)
        return sum(others, first).float()

    def allowed(self, *place: torch.Tensor) -> torch.Tensor:
        """True if no condition masks the score at a place."""
        return _all(condition if keeps else ~condition for condition, keeps in self.after(*place).masks)

    def run_node(self, n: Node) -> Any:
        """Run an operator, or follow the score through it."""
        if n.op != "call_function" or not any(isinstance(self.env[source], _Form) for source in n.all_input_nodes):
            return super().run_node(n)
        return self._after(n.target, *self.fetch_args_kwargs_from_env(n))

    def _after(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Form:
        """The score after an operator on its path."""
        scores = [arg for arg in args if isinstance(arg, _Form)]
        name = str(target).removesuffix(".default")
        if len(scores) != 1:
            self.refuse(f"it {'uses the score several times, in' if scores else 'changes the score with'} {name}")
        form, first = scores[0], args[0] is scores[0]
        other = args[1 if first else 0] if len(args) > 1 else None
        alpha = float(kwargs.get("alpha", 1))
        dtype = kwargs.get("dtype", other)
        if target in UNCHANGED or (target in CASTS and (dtype is None or dtype.is_floating_point)):
            return form
        if target in ADDS | SUBTRACTS and form.cap is None:
            sign = alpha if target in ADDS else -alpha
            if first:
                return form.plus(sign, other)
            if alpha == 1 and target in ADDS:
                return form.plus(1.0, other)
            if alpha == 1 and not form.masks:
                return form.times(-1.0).plus(1.0, other)
        if target in MULTIPLIES or (target in DIVIDES and first and not kwargs):
            number = _number(other)
            if number is not None and number != 0 and (number > 0 or not form.masks):
                return form.times(number if target in MULTIPLIES else 1 / number)
        if target is aten.neg.default and not form.masks:
            return form.times(-1.0)
        if target is aten.tanh.default and form.cap is None and not form.masks:
            return replace(form, cap=1.0)
        if target is aten.where.self and not first:
            kept = args[1] is form
            if _number(args[2 if kept else 1]) == float("-inf"):
                return replace(form, masks=(*form.masks, (args[0], kept)))
        if target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor) and _number(args[2]) == float("-inf"):
            return replace(form, masks=(*form.masks, (args[1], False)))
        after = " after its soft cap" if form.cap is not None else " after a mask" if form.masks else ""
        return self.refuse(f"it changes the score with {name}{after}")

    def refuse(self, reason: str) -> NoReturn:
        """Raise an error for what score terms don't express."""
        raise UnsupportedError(
            f"a score_mod of flex attention is not a sum of score terms: {reason}", where=self._where, advice=ADVICE
        )


def _number(term: Any) -> float | None:
    """The value of a constant; None for the score, and for what depends on the place, which torch.vmap transforms."""
    if isinstance(term, (int, float)) or (is_plain(term) and term.numel() == 1):
        return float(term)
    return None


def _tensor(term: Any, place: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return term if isinstance(term, torch.Tensor) else torch.full((), float(term), device=place[0].device)


LIBRARY = "torch.nn.attention.flex_attention"
"""The module of PyTorch in which flex attention lives."""


@dataclass(frozen=True, eq=False)
class Flexed:
    """The mask of one call of flex attention, and what its score_mod adds.

    Attributes:
        mask_mod: (row of the batch, head, query, key) -> True where allowed; None if all cells are.
        blocks: for each block of queries, number and indices of its partial blocks of keys, and of its full ones.
        block_size: (queries, keys) of a block.
        scoring: what the score_mod does.
        source: the objects that all of this was made from.
    """

    mask_mod: CellFunction | None
    blocks: tuple[torch.Tensor | None, ...]
    block_size: tuple[int, int]
    scoring: Scoring = field(default_factory=Scoring)
    source: tuple[Any, ...] = ()

    @classmethod
    def of(cls, mask: Any) -> Flexed | None:
        """Read a mask that a model passes to an attention function; None if it isn't a block mask."""
        if isinstance(mask, cls):
            return mask
        library = sys.modules.get(LIBRARY)
        if library is None or not isinstance(mask, library.BlockMask):
            return None
        return cls._of(mask.as_tuple())

    @classmethod
    def of_operator(cls, args: tuple[Any, ...], where: str) -> Flexed:
        """Read the arguments of the operator flex_attention.

        Args:
            args: query, key, value, score_mod, block mask, scale, options, and tensors for both functions.
            where: the module's name, for errors.
        """
        score_mod, mask = args[3], args[4]
        score_buffers, mask_buffers = (tuple(args[at]) if len(args) > at else () for at in (7, 8))
        library = sys.modules[LIBRARY]
        plain = score_mod is library._identity
        scoring = Scoring() if plain else read_score_mod(score_mod, score_buffers, args[0].device, where)
        return cls._of(mask, mask_buffers, scoring, (score_mod, *score_buffers))

    @classmethod
    def _of(
        cls, mask: tuple[Any, ...], buffers: tuple[Any, ...] = (), scoring: Scoring | None = None, source: Any = ()
    ) -> Flexed:
        *_, query_block, key_block, mask_mod = mask
        blocks = mask[2:6]
        plain = mask_mod is sys.modules[LIBRARY].noop_mask
        function = (lambda *place: mask_mod(*place, *buffers)) if buffers else mask_mod
        return cls(
            None if plain else function,
            blocks,
            (query_block, key_block),
            scoring or Scoring(),
            (mask_mod, *buffers, *blocks, *source),
        )

    def raw(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> RawMask:
        """The mask and the bias over a map, to be read once for all layers that share them. See `read`."""
        return RawMask(deferred=Deferred(self.source, sizes, lambda: self.read(sizes, device, where)))

    def read(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> RawMask:
        """The mask and the bias over a map, as functions of their cells.

        Args:
            sizes: (batch, heads, queries, keys).
            device: of the call.
            where: the module's name, for errors.

        Raises:
            UnsupportedError: the mask's function and its blocks contradict each other.
        """
        self._check_blocks(sizes, device, where)
        conditions = [*([] if self.mask_mod is None else [self.mask_mod]), *self.scoring.allowed]
        bias = self.scoring.bias
        mask = _cells(_every(conditions), sizes, device) if conditions else None
        if bias is None:
            return RawMask(mask=mask)
        added = _cells(bias, sizes, device)
        if all(bool((block > NEGLIGIBLE).all()) for _, block in added.blocks()):
            return RawMask(mask=mask, bias=added)
        return RawMask(mask=_cells(_masked(bias, conditions), sizes, device))

    def _check_blocks(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> None:
        """Compare the blocks that kernels visit with the function that decides about cells."""
        count, indices, full_count, full_indices = self.blocks
        partly = _block_map(count, indices, sizes[3], self.block_size[1])
        full = _block_map(full_count, full_indices, sizes[3], self.block_size[1])
        if partly is None:
            return
        whole = torch.zeros_like(partly) if full is None else full
        lists = torch.stack([partly | whole, whole], 1)
        lists = lists[:1] if bool((lists == lists[:1]).all()) else lists
        if self.mask_mod is None and bool(lists[:, 0].all()):
            return
        allowed = _cells(self.mask_mod or _anything, sizes, device)
        for row in range(max(len(lists), len(allowed))):
            listed = lists[row if len(lists) > 1 else 0]
            for rows, block in allowed[row if len(allowed) > 1 else 0].blocks():
                visited, unmasked = (_spread(blocks, rows, sizes[3], self.block_size) for blocks in listed)
                if bool((block & ~visited).any()) or bool((~block & unmasked).any()):
                    raise UnsupportedError(
                        f"a block mask contradicts itself: its mask_mod and its list of blocks of {self.block_size[0]} "
                        f"queries and {self.block_size[1]} keys allow different cells among queries {rows.start} to "
                        f"{rows.stop - 1}, so compiled and uncompiled flex attention differ",
                        where=where,
                        advice="make both from one function: create_block_mask(mask_mod, …)",
                    )


def _anything(*place: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=torch.bool, device=place[0].device)


def _every(conditions: list[CellFunction]) -> CellFunction:
    return lambda *place: _all(condition(*place) for condition in conditions)


def _all(flags: Iterable[torch.Tensor]) -> torch.Tensor:
    return reduce(operator.and_, flags)


def _masked(bias: CellFunction, conditions: list[CellFunction]) -> CellFunction:
    def numbers(*place: torch.Tensor) -> torch.Tensor:
        cell = bias(*place)
        return torch.where(_every(conditions)(*place), cell, float("-inf")) if conditions else cell

    return numbers


def _cells(function: CellFunction, sizes: tuple[int, int, int, int], device: torch.device) -> Cells:
    """The cells of a function of one place, computed for many places at once.

    The memory layout of the first cell tells on which rows and heads they depend: torch.vmap expands those that a
    function ignores.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    mapped: Callable[..., torch.Tensor] = function
    for axis in reversed(range(4)):
        mapped = torch.vmap(mapped, in_dims=tuple(0 if at == axis else None for at in range(4)))

    def compute(*axes: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), TransformGetItemToIndex():
            return mapped(*axes)

    batch, heads = (torch.arange(size, device=device) for size in sizes[:2])
    first = torch.zeros(1, dtype=torch.int64, device=device)
    cell = compute(batch, heads, first, first)
    shape = (*(1 if cell.stride(axis) == 0 else sizes[axis] for axis in (0, 1)), *sizes[2:])
    return Cells(compute, shape, cell.dtype, device)


def _block_map(count: torch.Tensor | None, indices: torch.Tensor | None, keys: int, size: int) -> torch.Tensor | None:
    """(1 or batch, 1 or heads, blocks of queries, blocks of keys): True for the blocks in a list."""
    if count is None or indices is None:
        return None
    columns = -(-keys // size)
    listed = torch.arange(indices.shape[-1], device=indices.device) < count[..., None]
    places = torch.where(listed, indices.long(), columns)
    blocks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    return blocks.scatter_(-1, places, True)[..., :columns]


def _spread(blocks: torch.Tensor, rows: slice, keys: int, size: tuple[int, int]) -> torch.Tensor:
    """(1 or heads, n, keys): each cell of these rows as its block is."""
    lines = torch.arange(rows.start, rows.stop, device=blocks.device) // size[0]
    columns = torch.arange(keys, device=blocks.device) // size[1]
    return blocks[:, lines][:, :, columns]
