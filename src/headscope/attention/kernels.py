"""Choose the kernel that computes attention's output together with each query's log-sum-exp.

PyTorch's scaled_dot_product_attention computes log-sum-exps in its fused kernels and discards them. A `KernelWatch`
collects them while it runs: nothing is computed twice, and the output is identical bit for bit. `attend_with_lse`
runs a fused kernel, or computes in blocks of scores if only the unfused kernel applies, which would build the whole
map. `score_blocks` computes such blocks for callers that need the scores themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from headscope.attention.scores import EVERYTHING, Mask, scores
from headscope.attention.terms import NO_TERMS, Terms, add_terms
from headscope.errors import UnsupportedError

aten = torch.ops.aten

COMPOSITE = aten.scaled_dot_product_attention.default
"""Under inference_mode, the dispatcher reports this operator instead of the kernel in it, so it is decomposed there."""

FUSED = tuple(
    getattr(aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    if hasattr(aten, name)
)
"""The kernels behind scaled_dot_product_attention that return (output, log-sum-exp, …)."""

ON_REQUEST = tuple(
    getattr(aten, name).default
    for name in ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
    if hasattr(aten, name)
)
"""Those of them that compute log-sum-exps only if their fifth argument is True."""

MATH = int(torch.nn.attention.SDPBackend.MATH.value)
"""The unfused kernel, which builds the whole map."""

BLOCK_CELLS = {"cpu": 1 << 19}
"""Maximum number of scores in a block: 2 MiB of fp32 on a CPU, so that all work on them stays in the cores' caches."""

OTHER_CELLS = 1 << 24
"""The same for other devices, which need more work at once."""

BLOCK_ROWS = 64
"""Minimum number of rows of a matrix product; blocks may exceed the maximum above to reach it."""


class KernelNotes:
    """Notes on the fused attention kernels that run in a call.

    Attributes:
        calls: number of fused kernels that ran.
        kernel: name of the last one.
        dtype: dtype of the last one's queries, after any cast by autocast.
        attended: called with the arguments and the result of each scaled_dot_product_attention, right after it ran.
    """

    def __init__(self) -> None:
        self.attended: Callable[[tuple[Any, ...], dict[str, Any], torch.Tensor], None] | None = None
        self.calls = 0
        self.kernel = ""
        self.dtype: torch.dtype | None = None
        self._lse: torch.Tensor | None = None

    def lse(self, batch: int, heads: int, queries: int) -> torch.Tensor | None:
        """(batch, heads, queries) in fp32 or wider; None unless exactly one fused kernel ran, with this shape."""
        lse = self._lse
        if self.calls != 1 or lse is None:
            return None
        if lse.dim() == 4:
            lse = lse.squeeze(-1)
        if lse.dim() == 3 and lse.shape[:2] == (batch, heads) and lse.shape[2] >= queries:
            return lse[..., :queries].detach()
        if queries == 1 and lse.numel() == batch * heads:
            return lse.detach().reshape(batch, heads, 1)
        return None

    def run(self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a fused kernel and note what it computed.

        Args:
            kernel: the operator, one of FUSED.
            run: runs it.
            args, kwargs: its arguments.
        """
        if kernel in ON_REQUEST:
            if len(args) > 4:
                args = (*args[:4], True, *args[5:])
            else:
                kwargs = {**kwargs, "compute_log_sumexp": True}
        result = run(*args, **kwargs)
        self.calls += 1
        self.kernel = kernel.name()
        self.dtype = args[0].dtype
        self._lse = result[1]
        return result


class KernelWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the fused attention kernels that run in its block.

    Attributes:
        notes: the notes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = KernelNotes()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        return self.notes.run(func, func, args, kwargs) if func in FUSED else func(*args, **kwargs)


def autocast_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a tensor in attention's products: autocast casts all tensors except those in fp64."""
    kind = x.device.type
    if x.dtype == torch.float64 or not x.is_floating_point() or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def autocast_now(kinds: set[str]) -> dict[str, torch.dtype | None]:
    """Device type -> the precision to which autocast currently casts; None if it is off."""
    return {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}


def is_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float
) -> bool:
    """Return True if scaled_dot_product_attention would run a fused kernel on q, k and v, (batch, heads, tokens, d)."""
    choose: Callable[..., int] = torch._fused_sdp_choice
    return choose(q, k, v, bias, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]) != MATH


def attend_with_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts and log-sum-exps from the fastest available kernel, without building a map.

    Args:
        q: (heads, queries, d_head), or (batch, heads, queries, d_head); the mask applies to the whole batch.
        k, v: (kv_heads, keys, d_head) and (kv_heads, keys, d_value), with a batch axis if q has one.
        scale: factor of q . k.
        mask: the mask; a bias is a torch tensor on q's device.
        terms: what the model adds to scale * q . k, as torch tensors; no fused kernel knows them.

    Returns:
        Contexts (…, heads, queries, d_value) in q's precision and log-sum-exps (…, heads, queries) in fp32 or wider.
        A query whose keys are all masked has context 0 and log-sum-exp -inf.
    """
    if q.dim() == 3:
        context, lse = attend_with_lse(q[None], k[None], v[None], scale=scale, mask=mask, terms=terms)
        return context[0], lse[0]
    queries, keys = q.shape[2], k.shape[2]
    form = _fused_form(mask, queries, keys, q) if terms.nothing else None
    if form is not None:
        bias, causal, unseen = form
        if is_fused(q, k, v, bias, causal, scale):
            watch = KernelWatch()
            with watch:
                context = scaled_dot_product_attention(
                    q, k, v, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
                )
            lse_of_kernel = watch.notes.lse(q.shape[0], q.shape[1], queries)
            if lse_of_kernel is not None:
                check_log_sum_exps(watch.notes.kernel, lse_of_kernel, q, k, scale=scale, mask=mask)
                if unseen is None:
                    return context, lse_of_kernel
                return (
                    context.masked_fill(unseen[..., None], 0.0),
                    lse_of_kernel.masked_fill(unseen.expand(lse_of_kernel.shape), float("-inf")),
                )
    return _attend_in_blocks(q, k, v, scale, mask, terms)


_CHECKED: set[tuple[str, str, torch.dtype]] = set()
"""Kernels whose log-sum-exps have been compared with their definition, with the device's type and the precision."""


def check_log_sum_exps(
    kernel: str, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, *, scale: float, mask: Mask = EVERYTHING
) -> None:
    """Compare a query's log-sum-exp with its definition, once for each kernel, type of device and precision.

    Kernels compute in powers of 2. One that returns its log-sum-exps so (as the operator below flex_attention does) is
    off by a factor of ln 2.

    Args:
        kernel: its name.
        lse: (batch, heads, queries), what it returned.
        q, k: (batch, heads, queries, d_head) and (batch, kv_heads, keys, d_head).
        scale: factor of q . k.
        mask: the mask; calls with a bias are not compared, as a bias may shift whole rows.

    Raises:
        UnsupportedError: the log-sum-exp is another number.
    """
    place = (kernel, q.device.type, q.dtype)
    if place in _CHECKED or mask.bias is not None or not lse.numel() or not k.numel():
        return
    wide = torch.promote_types(q.dtype, torch.float32)
    last, sizes = q.shape[2] - 1, (q.shape[2], k.shape[2])
    row = scores(
        q[0, :1, last:].to(wide), k[0, :1].to(wide), scale=scale, mask=mask, rows=np.array([last]), sizes=sizes
    )
    expected, returned = float(row.logsumexp(-1)), float(lse[0, 0, last])
    if math.isinf(expected) or abs(expected) < 1:
        return  # another call tells more
    if not abs(returned - expected) <= 0.05 * abs(expected):
        base = ": it counts in powers of 2" if abs(returned * math.log(2) - expected) <= 0.05 * abs(expected) else ""
        raise UnsupportedError(
            f"{kernel} returned the log-sum-exp {returned:.4g} for a query whose scores have {expected:.4g}{base}",
            where=f"{q.dtype} on {q.device.type}",
            advice="choose another kernel: with torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        )
    _CHECKED.add(place)


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """The scores of some heads and consecutive queries, with all keys that these may look at.

    Attributes:
        heads: range of heads, out of batch * heads.
        rows, keys: ranges of queries and keys.
        scores: (heads, rows, keys); overwritten by the next block.
    """

    heads: slice
    rows: slice
    keys: slice
    scores: torch.Tensor


def score_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
    hidden: float = float("-inf"),
) -> Iterator[ScoreBlock]:
    """The scores of a batch in blocks of bounded size, ordered by rows, then heads: O(keys) memory, or O(window).

    The blocks depend only on the shapes and the type of device, not on the number of threads.

    Args:
        q: (batch, heads, queries, width), of 32 bits or more.
        k: (batch, kv_heads, keys, width).
        scale: factor of q . k.
        mask: only `causal` and `window` are applied: a block leaves out keys that none of its queries may look at.
            Queries without any key are in no block.
        terms: what the model adds to scale * q . k, before masking; sinks are not applied.
        hidden: value of forbidden cells within a block.
    """
    batch, heads, queries, width = q.shape
    kv_heads, keys = k.shape[1:3]
    shared = heads // kv_heads
    groups = batch * kv_heads
    q, k = q.reshape(groups, shared, queries, width), k.reshape(groups, keys, width).transpose(1, 2)
    reach_first, reach_end = mask.reach(np.arange(queries) + keys - queries, keys)
    cells = BLOCK_CELLS.get(q.device.type, OTHER_CELLS)
    least = max(1, BLOCK_ROWS // shared)
    step = min(max(queries, 1), max(least, cells // max(1, groups * shared * keys)))
    if mask.window is not None and queries:
        # A block of n queries has n more keys than a single query sees, so a narrow window calls for few queries.
        step = min(step, max(least, int((reach_end - reach_first).max()) - 1))
    buffer = q.new_empty(0)
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        firsts, ends = reach_first[start:stop], reach_end[start:stop]
        seeing = firsts < ends
        if not seeing.any():
            continue
        low, high = int(firsts[seeing].min()), int(ends[seeing].max())
        corners = _corners(firsts, ends, (low, high), q.device)
        rows, span = stop - start, high - low
        many = min(groups, max(1, cells // (shared * rows * span)))
        if buffer.numel() < many * shared * rows * span:
            buffer = q.new_empty(many * shared * rows * span)
        for group in range(0, groups, many):
            count = min(many, groups - group)
            scores = buffer[: count * shared * rows * span].view(count, shared * rows, span)
            some = q[group : group + count, :, start:stop].reshape(count, shared * rows, width)
            torch.baddbmm(scores, some, k[group : group + count, :, low:high], beta=0, alpha=scale, out=scores)
            scores = scores.view(count * shared, rows, span)
            if terms.adds or terms.cap is not None:
                members = [head % heads for head in range(group * shared, (group + count) * shared)]
                scores = add_terms(
                    scores,
                    some.view(count * shared, rows, width) * scale,
                    k[group : group + count, :, low:high].transpose(1, 2),
                    terms if members == list(range(heads)) else terms.of_heads(members),
                    scale=scale,
                    rows=np.arange(start, stop),
                    columns=np.arange(low, high),
                    sizes=(queries, keys),
                )
            for columns, forbidden in corners:
                scores[..., columns].masked_fill_(forbidden, hidden)
            block_heads = slice(group * shared, (group + count) * shared)
            yield ScoreBlock(block_heads, slice(start, stop), slice(low, high), scores)


def _corners(
    firsts: np.ndarray, ends: np.ndarray, span: tuple[int, int], device: torch.device
) -> list[tuple[slice, torch.Tensor]]:
    """The columns of a block that contain forbidden cells, each with a (rows, columns) mask of these cells.

    Args:
        firsts, ends: the range of keys that each of the block's queries may see.
        span: the range of the block's keys.
        device: the device of the masks.
    """
    low, high = span
    first, end = (torch.as_tensor(x, device=device)[:, None] for x in (firsts, ends))
    left, right = min(int(firsts.max()), high), max(int(ends.min()), low)
    corners = []
    if left > low:
        corners.append((slice(0, left - low), torch.arange(low, left, device=device) < first))
    if right < high:
        corners.append((slice(right - low, high - low), torch.arange(right, high, device=device) >= end))
    return corners


@dataclass(frozen=True, eq=False)
class SoftmaxBlock:
    """The softmax of some heads and consecutive queries, with scores in units of log 2, so that exp becomes 2^x.

    Attributes:
        heads, rows, keys: as in ScoreBlock.
        shifted: (heads, rows, keys), (scores - highest) / log 2; the next block overwrites them.
        powers: (heads, rows, keys), 2^shifted = exp(scores - highest); the next block overwrites them.
        highest: (heads, rows, 1), each query's highest score, or its sink, / log 2; 0 if all scores are -inf.
        sinks: (heads, rows, 1), (sink - highest) / log 2, -inf for queries without keys; None if there are no sinks.
    """

    heads: slice
    rows: slice
    keys: slice
    shifted: torch.Tensor
    powers: torch.Tensor
    highest: torch.Tensor
    sinks: torch.Tensor | None = None


def softmax_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
    hidden: float = float("-inf"),
) -> Iterator[SoftmaxBlock]:
    """The softmax over whole rows in blocks of bounded size, with any mask. Arguments are those of `score_blocks`.

    On a CPU, torch's exp2 takes a third of the time of exp, and a thirtieth if the result underflows, as it does in
    every forbidden cell.
    """
    forbidden = None if mask.keys is None else ~torch.as_tensor(np.array(mask.keys, dtype=bool), device=q.device)
    bias = None if mask.bias is None else torch.as_tensor(mask.bias, device=q.device, dtype=q.dtype) / math.log(2)
    spare = q.new_empty(0)
    # Terms are in natural units, so their scores are converted afterwards.
    unit = math.log(2) if terms.nothing else 1.0
    for block in score_blocks(q, k, scale=scale / unit, mask=mask, terms=terms, hidden=hidden):
        scores, at = block.scores, block.heads
        if unit == 1:
            scores /= math.log(2)
        if bias is not None:
            bias_heads = [head % len(bias) for head in range(at.start, at.stop)]
            scores += bias[bias_heads if len(bias) > 1 else slice(None), block.rows, block.keys]
        if forbidden is not None:
            scores.masked_fill_(forbidden[block.keys], hidden)
        highest = scores.amax(-1, keepdim=True)
        sinks = None
        if terms.sinks is not None:
            empty = highest <= hidden
            sinks = terms.sinks.to(highest)[[head % q.shape[1] for head in range(at.start, at.stop)]] / math.log(2)
            sinks = sinks[:, None, None].expand(highest.shape)
            highest = torch.where(empty, highest, torch.maximum(highest, sinks))
            sinks = (sinks - highest).masked_fill(empty, float("-inf"))
        if hidden == float("-inf"):
            highest.masked_fill_(highest == hidden, 0)
        scores -= highest
        if spare.numel() < scores.numel():
            spare = torch.empty_like(scores).view(-1)
        powers = torch.exp2(scores, out=spare[: scores.numel()].view(scores.shape))
        yield SoftmaxBlock(at, block.rows, block.keys, scores, powers, highest, sinks)


def _attend_in_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: Mask, terms: Terms
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts and log-sum-exps from blocks of scores, in fp32 or wider, with any mask: O(keys) or O(window) memory."""
    wide = torch.promote_types(q.dtype, torch.float32)
    batch, heads, queries, _ = q.shape
    kv_heads, keys, d_value = v.shape[1:]
    shared = heads // kv_heads
    context = torch.zeros(batch * heads, queries, d_value, dtype=wide, device=q.device)
    lse = torch.full((batch * heads, queries), float("-inf"), dtype=wide, device=q.device)
    values = v.to(wide).reshape(batch * kv_heads, keys, d_value)
    for block in softmax_blocks(q.to(wide), k.to(wide), scale=scale, mask=mask, terms=terms):
        at, rows, total = block.heads, block.rows, block.powers.sum(-1, keepdim=True)
        if block.sinks is not None:
            total = total + block.sinks.exp2()
        looked = values[at.start // shared : at.stop // shared, block.keys]
        mixed = block.powers.view(len(looked), -1, block.powers.shape[-1]) @ looked
        context[at, rows] = mixed.view(*total.shape[:-1], d_value) / total.masked_fill(total == 0, 1)
        lse[at, rows] = (block.highest * math.log(2) + total.log())[..., 0]
    return context.view(batch, heads, queries, d_value).to(q.dtype), lse.view(batch, heads, queries)


def _fused_form(
    mask: Mask, queries: int, keys: int, q: torch.Tensor
) -> tuple[torch.Tensor | None, bool, torch.Tensor | None] | None:
    """A mask as arguments of scaled_dot_product_attention: (bias, is_causal, rows that see no key).

    None if the bias would have to be built as a map: for windows, and causal masks with padding or other sizes.
    """
    if mask.window is not None:
        return None
    if mask.causal:
        plain = mask.keys is None and mask.bias is None and queries == keys
        return (None, True, None) if plain else None
    bias = None
    unseen = None
    if mask.bias is not None:
        bias = torch.as_tensor(mask.bias, device=q.device)[None]
        if bias.dtype != q.dtype:
            # A finite number beyond the range of q's dtype stays finite: a row of them is not masked.
            wide = bias.to(torch.promote_types(bias.dtype, q.dtype))
            finite = wide.clamp(torch.finfo(q.dtype).min, torch.finfo(q.dtype).max)
            bias = torch.where(wide == float("-inf"), wide, finite).to(q.dtype)
        if mask.keys is not None:
            return None
        unseen = (bias == float("-inf")).all(-1)
    elif mask.keys is not None:
        allowed = torch.from_numpy(np.array(mask.keys)).to(q.device)
        bias = torch.zeros(keys, device=q.device, dtype=q.dtype).masked_fill(~allowed, float("-inf"))
        bias = bias.expand(q.shape[0], 1, queries, keys)
        unseen = (~allowed.any()).expand(1, 1, queries)
    return bias, False, unseen
