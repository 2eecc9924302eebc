"""The operators that are followed, and the rule for each: see headscope.live.names.sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from headscope.live.names.sources import (
    added,
    added_product,
    chosen,
    convolution,
    copied,
    joined,
    kept,
    linear,
    moved,
    normed,
    nothing,
    overwritten,
    pointwise,
    product,
    reduced,
    split_in_two,
    unread,
)
from headscope.live.seeing.operators import operators_of

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

UNSEEN = ("detach", "alias")
"""Operators without a kernel: as_subclass and nn.Parameter make an object of another class of their results, which a
kernel in Python has made a Tensor already."""

LOOKUPS = ("embedding", "one_hot", "index", "index_select", "take")
VALUED = ("index", "index_select", "gather", "masked_select", "_pack_padded_sequence")
"""Operators that move numbers to where the values in further arguments say."""

RULES = {
    name: rule
    for rule, names in {
        kept: "to _to_copy contiguous clone lift_fresh _conj resolve_conj resolve_neg dropout"
        " feature_dropout native_dropout alpha_dropout batch_norm native_batch_norm group_norm native_group_norm"
        " instance_norm masked_fill prelu"
        " _autocast_to_reduced_precision _autocast_to_full_precision",
        added: "index_add scatter_add scatter_reduce",
        normed: "layer_norm native_layer_norm rms_norm _fused_rms_norm",
        linear: "linear scaled_dot_product_attention _grouped_mm _scaled_grouped_mm",
        product: "matmul mm bmm",
        added_product: "addmm baddbmm",
        convolution: "convolution _convolution",
        reduced: "sum mean prod amax amin var std var_mean std_mean norm linalg_vector_norm logsumexp softmax _softmax"
        " log_softmax _log_softmax cumsum cumprod sort topk glu max min median",
        moved: "view reshape _unsafe_view _reshape_alias expand transpose t permute select slice squeeze unsqueeze"
        " split split_with_sizes unbind unfold diagonal flip roll rot90 repeat index index_select gather masked_select"
        " constant_pad_nd _pack_padded_sequence",
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
        if space == "aten" and (packet.rstrip("_") if in_place else packet) in RULES:
            ruled.append(name)
        elif not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            others.append(name)
    return [Operator(op) for op in (*operators_of(ruled), *filter(_moves_tensors, operators_of(others)))]


def _moves_tensors(op: Any) -> bool:
    """Return True if an operator takes a tensor and returns one."""
    return all(any("Tensor" in str(x.type) for x in side) for side in (op._schema.arguments, op._schema.returns))
