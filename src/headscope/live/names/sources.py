"""The tokens whose vectors stand at the places of a tensor, worked out for one operator at a time.

`Sources` say for each place of a tensor the number of the token whose embedding is there: int64, on the CPU, with as
many axes as the tensor, and of size 1 along those over which they are the same. An operator that moves numbers moves
sources just so. Adding a vector that comes from no token, such as a position's, changes none, and neither does adding
a mixture of several, as attention and convolutions make them: then the token is the one whose own vector passes
unmixed. Where the vectors of two tokens meet, there are SEVERAL, for good.

After the rules come the operators that have one, and `Memory`: results of earlier passes of a model, kept for the same
tokens at the same places.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from headscope.live.keeping.contents import once
from headscope.live.seeing.operators import operators_of

Sources = torch.Tensor
Known = Callable[[Any], "Sources | None"]
"""Returns the sources of a tensor; None if no token is in it."""

Result = Sources | Sequence[Sources | None] | None
Rule = Callable[[Known, Any, tuple[Any, ...], Any], Result]
"""Called with the known sources, an operator, its arguments, at least one of which has sources, and its result; returns
the sources of the result."""

RESHAPES = ("view", "reshape", "_unsafe_view", "_reshape_alias")
"""Operators that give the same numbers another shape."""

NOTHING, SEVERAL = -1, -2
"""Instead of a token's number: no token's vector, more than one's, or one's of which nothing is known."""


def unknown(axes: int) -> Sources:
    """Sources of a tensor whose tokens are unknown."""
    return torch.full((1,) * axes, SEVERAL, device="cpu")


def merged(parts: Sequence[Sources]) -> Sources:
    """Sources of a sum: those of each token that is in one of its terms."""
    first = parts[0]
    for other in parts[1:]:
        if other is not first:
            common = torch.where(first == NOTHING, other, torch.where(other == NOTHING, first, SEVERAL))
            first = torch.where(first == other, first, common)
    return first


def mixed(sources: Sources, axes: Sequence[int]) -> Sources:
    """Sources of numbers that each depend on all along these axes, which stay, with size 1."""
    if all(sources.shape[axis] == 1 for axis in axes):
        return sources
    most = sources.amax(tuple(axes), keepdim=True)
    least = torch.where(sources == NOTHING, most, sources).amin(tuple(axes), keepdim=True)
    return torch.where(least == most, most, NOTHING)


def compressed(sources: Sources) -> Sources:
    """The same sources, of size 1 along the axes over which they are the same."""
    sources = once(sources)
    for axis in range(sources.dim()):
        if sources.shape[axis] > 1 and bool((sources == sources.narrow(axis, 0, 1)).all()):
            sources = sources.narrow(axis, 0, 1)
    return sources


def aligned(sources: Sources, axes: int) -> Sources:
    """Sources as broadcasting sees them in a tensor of `axes` axes."""
    return sources if sources.dim() == axes else sources.reshape((1,) * (axes - sources.dim()) + tuple(sources.shape))


def spread(sources: Sources | None, shape: Sequence[int], axes: Iterable[int]) -> Sources:
    """Sources of full size along these axes of a tensor of this shape; NOTHING if there are none."""
    if sources is None:
        sources = torch.full((1,) * len(shape), NOTHING, device="cpu")
    wanted = {*axes}
    return sources.expand([size if axis in wanted else -1 for axis, size in enumerate(shape)])


def together(parts: Sequence[Sources | None], shapes: Sequence[Sequence[int]], axis: int) -> list[Sources]:
    """Sources of several tensors, of full size along one axis and of the same sizes along the others."""
    axis %= len(shapes[0])
    full = [spread(sources, shape, (axis,)) for sources, shape in zip(parts, shapes, strict=True)]
    sizes = [max(sizes) for sizes in zip(*(sources.shape for sources in full), strict=True)]
    return [sources.expand([*sizes[:axis], sources.shape[axis], *sizes[axis + 1 :]]) for sources in full]


def pointwise(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Each number follows from those at its place. One number for each token, such as a gate, brings no token."""
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    parts = [(x, sources) for x in tensors if (sources := known(x)) is not None]
    if result.dtype == torch.bool:
        return None
    wide = [part for part in parts if part[0].shape[-1:] == result.shape[-1:]] or parts
    return merged([aligned(sources, result.dim()) for _, sources in wide])


def kept(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Each number follows from the one at its place, and from statistics."""
    return known(args[0])


def normed(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """The last axes are normed together."""
    sources = known(args[0])
    return None if sources is None else mixed(sources, range(-len(args[1]), 0))


def linear(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """The last axis is multiplied by a matrix; in attention, that of the queries, whose tokens the contexts are for."""
    sources = known(args[0])
    if sources is None:
        return None
    axes = (result if isinstance(result, torch.Tensor) else result[0]).dim()
    if axes != sources.dim():
        return unknown(axes)
    packed = not isinstance(args[1], torch.Tensor) or known(args[1]) is not None
    return mixed(sources, (-1,)) if packed else contracted(sources, args[1])


def contracted(sources: Sources, matrix: torch.Tensor) -> Sources:
    """Sources (…, rows) of matrix @ x, from (…, places): mixtures, but for the tokens that it moves."""
    mixture = mixed(sources, (-1,))
    if sources.shape[-1] == 1 or matrix.dim() != 2 or bool((mixture != NOTHING).all()):
        return mixture
    found = picked(sources, matrix)
    return mixture if found is None else torch.where(found == NOTHING, mixture, found)


def picked(sources: Sources, matrix: torch.Tensor) -> Sources | None:
    """Sources (…, rows) of matrix @ x, with a matrix (…, rows, places): a row with one number alone moves a token.

    Args:
        sources: (…, places), those of x, whose vectors are the tokens'.
        matrix: the matrix. What its other rows make is a mixture.
    """
    others = (matrix.detach() if matrix.layout == torch.strided else matrix.detach().to_dense()) != 0
    alone = others.sum(-1) == 1
    if not bool(alone.any()):
        return None
    at = others.int().argmax(-1).cpu()
    shape = torch.broadcast_shapes(sources.shape[:-1], at.shape[:-1])  # type: ignore[no-untyped-call]
    wide = sources.expand(*shape, matrix.shape[-1]).gather(-1, at.expand(*shape, at.shape[-1]))
    return torch.where(alone.cpu(), wide, NOTHING)


def contracts(known: Known, rule: Rule, args: tuple[Any, ...]) -> bool:
    """Return True if numbers say whether tokens are moved: those of what sums over tokens, and ids that are sorted."""
    if rule is reduced:
        return not args[0].is_floating_point() and known(args[0]) is not None
    if rule is convolution:
        return args[1].shape[2:].numel() > 1 and known(args[0]) is not None
    if rule is added_product:
        args = args[1:]
    elif rule not in (linear, product):
        return False
    left, right = known(args[0]), known(args[1]) if isinstance(args[1], torch.Tensor) else None
    if left is not None:
        return left.shape[-1] > 1 and right is None and bool((mixed(left, (-1,)) == NOTHING).any())
    return right is not None and right.dim() > 1 and right.shape[-2] > 1


def product(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """A product with a matrix in which there are no tokens: of the vectors of tokens, or a mixture of tokens."""
    left, right = known(args[0]), known(args[1])
    if right is None and left is not None and left.dim() > 1:
        sources = contracted(left, args[1].mT if args[1].dim() > 1 else args[1])
        return aligned(sources if args[1].dim() > 1 else sources.squeeze(-1), result.dim())
    if left is None and right is not None and right.dim() > 1 and right.shape[-2] == 1 and args[0].dim() > 1:
        return aligned(right, result.dim())
    if left is None and right is not None and right.dim() > 1 and right.shape[-1] == 1 and args[0].dim() > 1:
        found = picked(right.squeeze(-1), args[0])
        return None if found is None else aligned(found.unsqueeze(-1), result.dim())
    return None


def added(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Numbers of one tensor are added to some of another's: where two tokens meet, there are SEVERAL."""
    name = op._schema.name.removeprefix("aten::").rstrip("_")
    puts = name == "index_put"
    new = args[2] if puts else args[3]
    sources, own = known(new) if isinstance(new, torch.Tensor) else None, known(args[0])
    if sources is None or not args[0].is_floating_point():
        return own
    index = _on_the_cpu(args[1] if puts else args[2])
    sources = spread(sources, new.shape, range(new.dim()))
    onto = torch.full(args[0].shape, NOTHING, device="cpu")
    if puts:
        onto = torch.ops.aten.index_put(onto, index, sources)
        same = torch.equal(torch.ops.aten.index(onto, index), sources.expand_as(torch.ops.aten.index(onto, index)))
    elif name == "index_add":
        onto = onto.index_copy(args[1], index, sources.contiguous())
        same = torch.equal(onto.index_select(args[1], index), sources)
    else:
        sources = sources[tuple(map(slice, index.shape))]
        onto = onto.scatter(args[1], index, sources)
        same = torch.equal(onto.gather(args[1], index), sources)
    if not same:
        return unknown(result.dim())
    return compressed(merged([onto, spread(own, args[0].shape, range(result.dim()))]))


def added_product(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """A product, and what is added to it."""
    parts = [known(args[0]), product(known, op, args[1:], result)]
    sources = [aligned(part, result.dim()) for part in parts if isinstance(part, torch.Tensor)]
    return merged(sources) if sources else None


def convolution(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """A convolution that sees one place at a time multiplies by a matrix, and may move tokens; any other mixes them."""
    sources, (weight, _, stride, padding, dilation, transposed) = known(args[0]), args[1:7]
    if sources is None or transposed:
        return None
    if weight.shape[2:].numel() == 1:
        return None if any(padding) or any(step != 1 for step in stride) else mixed(sources, (1,))
    used = (weight.detach() != 0).any(0).any(0).nonzero().tolist()
    if len(used) != 1:
        return None
    sources = mixed(sources, (1,))
    for axis, offset in enumerate(used[0], 2):
        at = torch.arange(result.shape[axis], device="cpu") * stride[axis - 2]
        at = at + offset * dilation[axis - 2] - padding[axis - 2]
        size, shape = args[0].shape[axis], [-1 if side == axis else 1 for side in range(result.dim())]
        full = sources.expand([size if side == axis else -1 for side in range(result.dim())])
        inside = ((at >= 0) & (at < size)).reshape(shape)
        sources = torch.where(inside, full.index_select(axis, at.clamp(0, size - 1)), NOTHING)
    return compressed(sources)


def reduced(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Sums, norms, cumulative sums, softmax and so on: along the vectors of tokens, or mixtures of tokens."""
    sources, x = known(args[0]), args[0]
    if sources is None:
        return None
    at = next(at for at, argument in enumerate(op._schema.arguments) if argument.name.startswith("dim"))
    axes = args[at] if len(args) > at and args[at] is not None else range(x.dim())
    axes = [axis % x.dim() for axis in ([axes] if isinstance(axes, int) else axes)] or range(x.dim())
    first = result[0] if isinstance(result, (tuple, list)) else result
    if not x.is_floating_point():
        return [unknown(first.dim())] if first is not result else None
    if not first.is_floating_point() or any(sources.shape[axis] != 1 for axis in axes):
        return None
    sources = sources if first.dim() == x.dim() else sources.squeeze(tuple(axes))
    return sources if first is result else [sources]


def moved(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Numbers are moved, repeated or left out; those that are put in are NOTHING."""
    if (sources := known(args[0])) is None:
        return None
    x, name, others = args[0], op._schema.name.removeprefix("aten::"), [_on_the_cpu(x) for x in args[1:]]
    if name in RESHAPES:
        return compressed(sources.expand(x.shape).reshape(result.shape))
    if name == "gather" and sources.shape[others[0]] == 1:
        return sources[tuple(slice(size) for size in result.shape)]
    if name == "repeat":
        sources = aligned(sources, result.dim())
        return sources.repeat([n if size > 1 else 1 for n, size in zip(others[0], sources.shape, strict=True)])
    if name == "constant_pad_nd":
        others[1:] = [NOTHING]
    out = op(spread(sources, x.shape, _axes_to_move(name, x.dim(), others)), *others)
    return compressed(out) if isinstance(out, torch.Tensor) else [compressed(part) for part in out]


def _axes_to_move(name: str, axes: int, args: Sequence[Any]) -> set[int]:
    """The axes along which an operator moves numbers; all, unless its arguments say so."""
    if name in ("flip", "index_select") or (name == "roll" and len(args) > 1):
        dims = args[1] if name == "roll" else args[0]
        return {axis % axes for axis in ([dims] if isinstance(dims, int) else dims)}
    if name == "index":
        moved_axes, axis = set(), 0
        for index in args[0]:
            width = index.dim() if index is not None and index.dtype == torch.bool else 1
            moved_axes |= {*range(axis, axis + width)} if index is not None else set()
            axis += width
        return moved_axes
    return set(range(axes))


def _on_the_cpu(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_on_the_cpu(part) for part in x]
    return x.detach().cpu() if isinstance(x, torch.Tensor) else x


def joined(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Tensors are put side by side, or on top of each other."""
    tensors = [x for x in args[0] if x.dim() > 1 or x.numel()]  # an empty cache begins as an empty tensor of one axis
    parts = [known(x) for x in tensors]
    axis = args[1] if len(args) > 1 else 0
    if op._schema.name == "aten::stack":
        parts = [sources if sources is None else sources.unsqueeze(axis) for sources in parts]
        shapes = [[*x.shape[: axis % result.dim()], 1, *x.shape[axis % result.dim() :]] for x in tensors]
    else:
        shapes = [list(x.shape) for x in tensors]
    if all(part is parts[0] for part in parts) and parts[0] is not None and parts[0].shape[axis] == 1:
        return parts[0]
    return compressed(torch.cat(together(parts, shapes, axis), axis))


def chosen(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Of two tensors, one number or the other."""
    pair = [known(x) for x in args[1:]]
    # a number that stands where an id stood is not a word that the caller passed
    nothing = torch.tensor(NOTHING if result.is_floating_point() else SEVERAL, device="cpu")
    first, second = (nothing if sources is None else aligned(sources, result.dim()) for sources in pair)
    return compressed(torch.where(_on_the_cpu(args[0]), first, second))


def overwritten(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Numbers of one tensor, or one number, are put into another tensor."""
    if not args[0].is_floating_point():
        return unknown(result.dim())
    name = op._schema.name.removeprefix("aten::").rstrip("_")
    if "reduce" in op._overloadname or (name == "index_put" and args[3:] and args[3]):
        return added(known, op, args, result)
    new = [_on_the_cpu(x) for x in args]
    if name == "index_copy":
        new[0], new[3] = together([known(args[0]), known(args[3])], [args[0].shape, args[3].shape], args[1])
    else:
        for at, x in enumerate(args):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                new[at] = spread(known(x), x.shape, range(x.dim()))
    if name in ("scatter", "index_fill") and not isinstance(new[3], torch.Tensor):
        new[3] = NOTHING
    return compressed(getattr(torch.ops.aten, name)(*new))


def copied(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """All numbers of one tensor are put into another."""
    sources = known(args[1])
    return None if sources is None else aligned(sources, args[0].dim())


def split_in_two(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Complex numbers as pairs, and pairs as complex numbers."""
    if (sources := known(args[0])) is None:
        return None
    return sources.unsqueeze(-1) if result.dim() > args[0].dim() else mixed(sources, (-1,)).squeeze(-1)


def unread(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """An operator without a rule may have moved the tokens of its arguments."""
    flat = [x for value in args for x in (value if isinstance(value, (list, tuple)) else [value])]
    if all(known(x) is None for x in flat):
        return None
    results = result if isinstance(result, (list, tuple)) else [result]
    floating = [isinstance(x, torch.Tensor) and x.dtype.is_floating_point | x.dtype.is_complex for x in results]
    found = [unknown(x.dim()) if follows else None for x, follows in zip(results, floating, strict=True)]
    return found if isinstance(result, (list, tuple)) else found[0]


def nothing(known: Known, op: Any, args: tuple[Any, ...], result: Any) -> Result:
    """Values that are looked up have no tokens, unless they are words."""
    return None


POINTWISE = (
    "add sub rsub mul div true_divide floor_divide remainder fmod neg abs sign reciprocal pow float_power square sqrt"
    " rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan atan2 erf erfc sigmoid logit"
    " relu relu6 leaky_relu elu selu celu gelu silu mish softplus softshrink hardshrink hardsigmoid hardswish hardtanh"
    " threshold rrelu clamp clamp_min clamp_max clip maximum minimum fmax fmin lerp addcmul addcdiv nan_to_num round"
    " floor ceil trunc frac hypot xlogy positive"
)
"""Operators that work number by number. Comparisons are none of them: a flag stands for no token."""

MIXING = (
    "empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_empty_strided new_zeros new_ones"
    " new_full _fft_c2c _fft_r2c _fft_c2r avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d"
    " mkldnn_rnn_layer lstm gru rnn_tanh rnn_relu _cdist_forward"
)
"""Operators that mix tokens, or use nothing but the shape of their arguments."""

QUANTISED = (
    "quantized::linear_dynamic quantized::linear_dynamic_fp16 quanto::qbytes_mm"
    " bitsandbytes::int8_mixed_scaled_mm bitsandbytes::int8_scaled_mm"
)
"""Operators of quantised Linears, those of optimum-quanto and of bitsandbytes among them."""

UNSEEN = ("detach", "alias")
"""Operators without a kernel: as_subclass and nn.Parameter make an object of another class of their results, which a
kernel in Python has made a Tensor already."""

LOOKUPS = ("embedding", "one_hot", "index", "index_select", "take")
VALUED = ("index", "index_select", "gather", "masked_select")
"""Operators that move numbers to where the values in further arguments say."""

RULES = {
    name: rule
    for rule, names in {
        kept: "to _to_copy contiguous clone lift_fresh _conj resolve_conj resolve_neg dropout"
        " feature_dropout native_dropout alpha_dropout batch_norm native_batch_norm group_norm native_group_norm"
        " instance_norm masked_fill prelu"
        " _autocast_to_reduced_precision _autocast_to_full_precision bitsandbytes::int8_vectorwise_quant",
        added: "index_add scatter_add scatter_reduce",
        normed: "layer_norm native_layer_norm rms_norm _fused_rms_norm",
        linear: f"linear scaled_dot_product_attention _grouped_mm _scaled_grouped_mm {QUANTISED}",
        product: "matmul mm bmm",
        added_product: "addmm baddbmm",
        convolution: "convolution _convolution",
        reduced: "sum mean prod amax amin var std var_mean std_mean norm linalg_vector_norm logsumexp softmax _softmax"
        " log_softmax _log_softmax cumsum cumprod sort topk glu max min median",
        moved: "view reshape _unsafe_view _reshape_alias expand transpose t permute select slice squeeze unsqueeze"
        " split split_with_sizes unbind unfold diagonal flip roll rot90 repeat index index_select gather masked_select"
        " constant_pad_nd",
        joined: "cat stack",
        chosen: "where",
        overwritten: "index_put index_copy masked_scatter scatter slice_scatter select_scatter index_fill",
        copied: "copy",
        split_in_two: "view_as_complex view_as_real",
        pointwise: POINTWISE,
        nothing: "embedding one_hot zero fill normal uniform bernoulli random exponential set " + MIXING,
    }.items()
    for name in names.split()
}
"""The operators that are followed. Of what others make of tokens, nothing is known."""


class Operator:
    """An operator as it is followed.

    Attributes:
        op: the operator.
        name: its name, without a namespace and, if it works in place, without the underscore at its end.
        rule: the rule for its results.
        looks_up: True if it may look up ids in a table.
        valued: True if the tokens of its result depend on values, not on shapes alone.
        writes: positions of the arguments that it writes to.
        tensors: positions of arguments that are tensors, but may be given as numbers.
    """

    def __init__(self, op: Any) -> None:
        arguments = op._schema.arguments
        written = [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments]
        self.op = op
        self.name = op._schema.name.removeprefix("aten::").rstrip("_")
        self.rule = RULES.get(self.name, unread)
        if self.name == "view" and op._overloadname == "dtype":
            self.rule = unread  # bits of numbers, as others
        elif torch.Tag.inplace_view in op.tags:
            self.rule = nothing  # the tensor has another shape now
        elif self.rule is reduced and not any(argument.name.startswith("dim") for argument in arguments):
            self.rule = pointwise if torch.Tag.pointwise in op.tags else nothing  # the larger of two numbers; of all
        self.looks_up = self.name in LOOKUPS
        self.valued = self.name in VALUED or self.rule in (chosen, overwritten, added)
        self.writes = [at for at, writes in enumerate(written) if writes]
        self.tensors = [at for at, argument in enumerate(arguments) if str(argument.type) == "Tensor"]


def followed_operators(names: Iterable[str]) -> list[Operator]:
    """Those of these operators that have a rule, those that do the same in place, and those of which nothing is known.

    An operator without a rule that is made of others is followed in these.
    """
    ruled, others = [], []
    for name in names:
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        in_place = packet.endswith("_") and not packet.endswith("__")
        if "out" in overload or packet in UNSEEN or "backward" in packet:
            continue
        if f"{space}::{packet.rstrip('_') if in_place else packet}".removeprefix("aten::") in RULES:
            ruled.append(name)
        elif not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            others.append(name)
    unruled = [(op, (op._schema.arguments, op._schema.returns)) for op in operators_of(others)]
    moving = [op for op, sides in unruled if all(any("Tensor" in str(x.type) for x in side) for side in sides)]
    return list(map(Operator, (*operators_of(ruled), *moving)))


ELEMENTS = 1 << 40
"""Numbers from here on are those of the elements of integer arguments, not of tokens."""

MOST_RESULTS, MOST_BYTES = 4096, 1 << 26
"""Maximum number of results that are kept for operators that run again on the same tokens, and of bytes for them."""

Calls = list[tuple[np.ndarray | None, np.ndarray | bool | None]]
"""The tokens of the queries and keys of each attention in a block. In place of the keys', True if they are the queries'
after cached keys of earlier passes."""


class Memory:
    """Results of earlier passes of a model, kept for the same tokens at the same places.

    Attributes:
        results: the sources of results, and what else follows from sources alone, with those sources.
        blocks: how blocks treat tokens, by their calls and the sources of what they return: see `following`.
    """

    def __init__(self) -> None:
        self.results: dict[Any, tuple[list[Sources], Any]] = {}
        self.blocks: dict[Any, tuple[Calls, list[Sources | None]]] = {}
        self._interned: dict[tuple[Any, bytes], Sources] = {}
        self._size = 0

    def interned(self, sources: Sources) -> Sources:
        """The one tensor that stands for all equal ones."""
        sources = sources.contiguous()
        key = tuple(sources.shape), sources.numpy().tobytes()
        if key not in self._interned:
            self._interned[key] = sources
            self._size += 2 * sources.numel() * sources.element_size()
        return self._interned[key]

    def forget(self) -> None:
        """Forget all if it is too much."""
        if len(self.results) > MOST_RESULTS or self._size > MOST_BYTES:
            for kept in (self.results, self.blocks, self._interned):
                kept.clear()
            self._size = 0


MEMORIES: dict[int, Memory] = {}
"""Id of a model -> how its passes treated tokens. A model takes its memory with it."""


def memory_of(model: nn.Module) -> Memory:
    """The memory of a model's passes."""
    at = id(model)
    if at not in MEMORIES:
        weakref.finalize(model, MEMORIES.pop, at, None).atexit = False
    return MEMORIES.setdefault(at, Memory())
