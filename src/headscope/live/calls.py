"""Calls of attention as capture delivers them, and the base class of the consumers that receive them.

Capture doesn't decide what is kept. It calls a consumer with live tensors, on the model's device and in the model's
precision; the consumer copies them, computes statistics on the device, or compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscope.attention.scores import Mask, attend
from headscope.attention.terms import NO_TERMS, Terms
from headscope.live.hooks import Drawn
from headscope.live.masks.analyst import Analyst, Rules
from headscope.live.plan.stacks import NOWHERE, Stack
from headscope.live.progress import Progress, Sizes, sizes_of

if TYPE_CHECKING:
    from torch import nn

    from headscope.attention.patterns import Way
    from headscope.live.keeping.contents import Contents, Weights
    from headscope.live.keeping.projections import Awaited, Output
    from headscope.live.names.axes import Followed, Tokens
    from headscope.live.names.lookups import Replace
    from headscope.live.seeing.missed import Missed


@dataclass(frozen=True)
class Unrecorded:
    """Attention that ran in a forward pass without being recorded.

    Attributes:
        module: name in the model of the innermost module that was running.
        kind: name of the class that computed it.
        operator: name of the operator: `aten::_scaled_dot_product_flash_attention_for_cpu`, `aten::_softmax`, ….
        forward: number of the forward pass, counted from 0 within the capture.
    """

    module: str
    kind: str
    operator: str
    forward: int

    def __str__(self) -> str:
        return f"{self.operator} in {self.module or 'the model itself'} ({self.kind})"


UNREAD = Rules(())
"""The rules of a call whose mask hasn't been read yet."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of one attention module: live tensors, valid until the consumer returns.

    Attributes:
        module: the attention module.
        path: its name in the model.
        stack: the stack it belongs to.
        layer: its layer number in that stack, as the model counts, from 0.
        layer_terms: what the layer itself adds to scale * q . k; `terms` has also what masks and position biases add.
        unfused: True if the module computed scores and weights step by step, in its own precision.
        turn: number of earlier calls, in this forward pass, of the transformer that the module is part of.
        q: (batch, heads, queries, d_head).
        k: (batch, kv_heads, keys, d_head): not repeated under grouped-query attention.
        v: (batch, kv_heads, keys, d_value): not repeated either.
        context: (batch, heads, queries, d_value): output of the attention, before the output projection.
        fused: True if one fused kernel computed it.
        scale: factor of q . k.
        rules: the mask's rule and the padding of each row of the batch.
        stage: what q and k are: projected, scaled or rotated.
        own: True if queries and keys are the same tokens (with a cache: queries are the last of the keys).
        weights: (batch, heads, queries, keys), if the model computed them itself (eager attention).
        extra_keys: names of keys that are not tokens, at the end of the key axis.
        silenced: the heads of this layer that are being silenced, or attend with another map: head -> name of the way.
            The context is what it was before.
        dropout: dropout probability of the weights in this call; if not 0, `context` is not weights @ V.
        proven: True if a library's own code computed `context`, unchanged, from these tensors alone: then samples show
            whether it was read right. Otherwise every query was compared before the call was delivered.
        mark: (batch * queries * heads,), its products with the vector of headscope.live.keeping.contents, if
            known.
        rounded: the spacing of numbers around 1 to which the module's products rounded q, k and v; 0 if they did not.
        beside: if queries and keys are other tokens: the rules of the self-attention over the same queries that was
            read last, which tell the padding among them; None if there was none.
        followed: the numbers of the queries' and the keys' tokens.
    """

    module: nn.Module
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    context: torch.Tensor
    path: str = ""
    stack: Stack = NOWHERE
    layer: int = -1
    scale: float = 1.0
    rules: Rules = UNREAD
    stage: str = ""
    own: bool = False
    fused: bool = False
    weights: torch.Tensor | None = None
    extra_keys: tuple[str, ...] = ()
    silenced: Mapping[int, str] = field(default_factory=dict)
    dropout: float = 0.0
    turn: int = 0
    layer_terms: Terms = NO_TERMS
    unfused: bool = False
    proven: bool = False
    mark: torch.Tensor | None = None
    rounded: float = 0.0
    beside: Rules | None = None
    followed: Followed = (None, None)

    @property
    def eps(self) -> float:
        """The spacing of numbers around 1 in the module's precision."""
        return max(self.rounded, torch.finfo(self.context.dtype).eps)

    @cached_property
    def lse(self) -> torch.Tensor:
        """(batch, heads, queries): log-sum-exps of the scores, in fp32 or wider, computed when they are asked for."""
        q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (self.q, self.k))
        with torch.autocast(q.device.type, enabled=False):
            rows = [
                attend(q[at], k[at], k[at], scale=self.scale, mask=self.mask(at), terms=self.terms(at))[1]
                for at in range(len(q))
            ]
        return torch.stack(rows)

    def mask(self, row: int) -> Mask:
        """The mask of one row of the batch, over all positions, padding included."""
        return self.rules.row(row).mask

    def terms(self, row: int) -> Terms:
        """Terms added to scale * q . k in one row of the batch, over all positions, as torch tensors."""
        terms, heads = self.rules.row(row).with_terms(self.layer_terms), self.q.shape[1]
        table = terms.by_distance
        return terms if table is None or len(table) == heads else replace(terms, by_distance=table.expand(heads, -1))


@dataclass(eq=False)
class Forward:
    """One forward pass of the captured model.

    Attributes:
        number: counted from 0 within the capture.
        module: the module that was called.
        args, kwargs: its arguments.
        tokens: the tokens that entered it; None if they are not followed.
        output: the module's output, once it has returned.
        analyst: finds the rules of masks, and remembers those of this forward pass.
        awaited: the last attention's output, until its projection has read it.
        projections: for each stack and layer, the modules that read its attention's output.
        own: the rules of the self-attention that was read last, by its turn, rows and queries.
        progress: which modules have been entered and which layers numbered.
        missed: operators that capture did not read and that may be attention, and how often each ran.
        unrecorded: those of them that are attention, once the forward pass is over.
        idle: name, stack and layer of attention modules of which no call was seen, once the forward pass is over.
        changed_inside: name of an attention function that isn't the library's own and was read at the operator in it.
        contents: the contents of the arguments when the pass began; None if no consumer needs them.
        weights: the module's parameters when the pass began; None likewise.
        switches: what else decided then what its parts compute.
        autocast: precision of autocast on the model's devices, as `kernels.autocast_now` returns it.
        drawn: the states of the random numbers when the pass began.
        implementations: names of transformers' attention when the pass began, by the ids of the configs that set them.
        dropped: name of the first module that drops numbers at random in this pass; empty if none does.
        held: calls that may be parts of one layer's attention, until it is known what they are.
        caller: the frame in which it runs, until it is over.
        handling: id of the exception that was being handled when it began.
        again: number of calls of the module within its own call that are running.
    """

    number: int
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tokens: Tokens | None = None
    output: Any = None
    analyst: Analyst = field(default_factory=Analyst)
    awaited: Awaited | None = None
    projections: dict[tuple[Stack, int], Output] = field(default_factory=dict)
    own: dict[tuple[int, int, int], Rules] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    missed: dict[Missed, int] = field(default_factory=dict)
    unrecorded: tuple[Unrecorded, ...] = ()
    idle: list[tuple[str, Stack, int]] = field(default_factory=list)
    changed_inside: str = ""
    contents: Contents | None = None
    weights: Weights | None = None
    switches: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    autocast: dict[str, torch.dtype | None] = field(default_factory=dict)
    drawn: Drawn = field(default_factory=dict)
    implementations: dict[int, str] = field(default_factory=dict)
    dropped: str = ""
    held: Any = None
    caller: FrameType | None = None
    handling: int = 0
    again: int = 0

    @cached_property
    def given(self) -> list[Sizes]:
        """The sizes of the batch, as far as the arguments of the model's call tell them."""
        return [size for value in (*self.args, *self.kwargs.values()) if (size := sizes_of(value)) is not None]

    def sizes(self, module: nn.Module) -> list[Sizes]:
        """The sizes that a module's attention may have: those of its own input, otherwise those of the model's."""
        own = self.progress.inputs.get(id(module))
        return self.given if own is None or own.sizes is None else [own.sizes]

    def forget(self, module: nn.Module) -> None:
        """Forget the operators that ran in a module and were not read, for the module has been read as a whole."""
        for missed in [call for call in self.missed if call.module == id(module)]:
            del self.missed[missed]

    def is_whole(self, module: nn.Module, batch: int, queries: int) -> bool:
        """Return True if a call has all rows and tokens of its module's input."""
        return any(size in ((batch, queries), (queries, batch)) for size in self.sizes(module))

    def is_chosen(self, module: nn.Module, followed: Followed, batch: int, queries: int, keys: int) -> bool:
        """Return True if queries aren't the last of the keys' tokens: they are others, or, but for a cache, some."""
        last, among = followed
        sizes = {*self.sizes(module), *self.given} if queries < keys else set()
        whole = sizes & {(batch, queries), (queries, batch)} or not sizes & {(batch, keys), (keys, batch)}
        if last is None or among is None:
            return last is not among or not whole  # one side has no tokens: learned queries, for instance
        if last.shape[1] == queries <= keys <= among.shape[1]:
            here = among[:, keys - queries : keys]
            if bool(((here != last) & (here >= 0) & (last >= 0)).any()):
                return True
        if whole or not ((last >= 0).any() and (among >= 0).any()):
            return not whole
        return bool((among[:, :-queries] >= 0).any()) or not np.array_equal(among[:, -queries:], last)

    def is_fewer(self, batch: int, queries: int) -> bool:
        """Return True if a call has fewer tokens, in all rows, than the model was given, or fewer rows than images."""
        if self.given:
            return all(batch * queries < rows * tokens for rows, tokens in self.given)
        images = [x for x in (*self.args, *self.kwargs.values()) if isinstance(x, torch.Tensor) and x.dim() > 3]
        return bool(images) and batch < min(map(len, images))


class Consumer:
    """Receives the calls that capture delivers; derive from it, and say what to do with them.

    All methods are called in the thread that runs the model.

    Attributes:
        silencing: True if it silences heads, or gives them other maps.
        follows: True if it needs to know which tokens queries and keys stand for.
        keeps_padding: True if it needs the rules that padding follows.
        replace: changes the ids that are looked up; None to leave them as they are.
    """

    silencing = False
    keeps_padding = False
    follows = False
    replace: Replace | None = None

    def begin(self, forward: Forward) -> None:
        """Called when a forward pass begins."""

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True if `take` should be called for this layer; other layers cost nothing."""
        return True

    def take(self, forward: Forward, call: Call) -> None:
        """Called when a layer has run."""

    def end(self, forward: Forward) -> None:
        """Called when the forward pass is over and `forward.output` is set."""

    def drop(self, forward: Forward) -> None:
        """Called when the forward pass raised an error: discard what it left."""

    def silences(self, stack: Stack, layer: int) -> dict[int, Way]:
        """Heads of a layer to silence, or to give another map: head -> way."""
        return {}
