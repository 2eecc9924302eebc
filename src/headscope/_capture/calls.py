"""What capture hands over as each layer runs, and who takes it.

Capture decides nothing about what is kept. It calls a consumer with live tensors, where they lie and as the model made
them; the consumer copies, or computes statistics on the device, or compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from headscope._capture.masks import Analyst, Rules
from headscope._capture.progress import Progress
from headscope._capture.rows import log_sum_exps
from headscope.attention import Mask

if TYPE_CHECKING:
    import torch
    from torch import nn

    from headscope._capture.progress import Missed
    from headscope._capture.projections import Awaited, Output


@dataclass(frozen=True)
class Stack:
    """The attention modules that do the same thing in successive layers.

    Attributes:
        pattern: their names in the model with the counting numbers left out: `encoder.layers.*.self_attn`.
        name: in one word, within this model: self, cross, encoder, decoder, vision_model, ….
        cross: whether keys come from elsewhere than queries.
        call: 0 for the first attention that a layer's module computes each time it runs; 1 for the second, which is a
            stack of its own, `self.2`; and so on.
    """

    pattern: str
    name: str
    cross: bool
    call: int = 0

    @property
    def base(self) -> str:
        """The name of the stack of which this is one call."""
        return self.name if not self.call else self.name.removesuffix(f".{self.call + 1}")


@dataclass(frozen=True)
class Unrecorded:
    """Attention that ran in a forward pass and was not recorded.

    Attributes:
        module: the name in the model of the innermost module that was running.
        kind: the class that computed it.
        operator: the operator that ran: `aten::_scaled_dot_product_flash_attention_for_cpu`, `aten::_softmax`, ….
        forward: the forward pass, counted from 0 within the capture.
    """

    module: str
    kind: str
    operator: str
    forward: int

    def __str__(self) -> str:
        return f"{self.operator} in {self.module or 'the model itself'} ({self.kind})"


@dataclass(frozen=True, eq=False)
class Projection:
    """The output projection that a module applies before it returns, where capture can see only what comes after it.

    Attributes:
        weight: (d_out, heads * d_value), a Linear's.
        bias: (d_out,) or None.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Call:
    """One call of one attention module: live tensors, valid until the consumer returns.

    Attributes:
        module: the attention module.
        path: its name in the model.
        stack: which stack it belongs to.
        layer: its number in that stack, as the model counts, from 0.
        turn: how many times the transformer that it is part of had been called before in this forward pass.
        q: (batch, heads, queries, d_head).
        k: (batch, kv_heads, keys, d_head): not repeated under grouped-query attention.
        v: (batch, kv_heads, keys, d_value), likewise.
        kernel_lse: (batch, heads, queries), log-sum-exp of each query's scores, as the module's own kernel computed it;
            None where there was none. `lse` is there in any case.
        context: (batch, heads, queries, d_value): what the module's attention gave, before its output projection.
        scale: what q . k is multiplied by.
        rules: for each row of the batch, the mask as a rule, and where the padding is.
        stage: what q and k are: projected, scaled, rotated.
        own: whether queries and keys are the same tokens (with a cache: queries are the last of the keys).
        returned: (batch, queries, d_out): what the module returned, where capture computed `context` by itself;
            `projection` leads from one to the other.
        weights: (batch, heads, queries, keys), where the model computed them itself (eager attention).
        extra_keys: names of keys that are no tokens, at the end of the key axis.
        silenced: the heads of this layer that are being ablated.
        dropout: the share of weights that the module drops in this call; `context` is then not weights @ V.
    """

    module: nn.Module
    path: str
    stack: Stack
    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    kernel_lse: torch.Tensor | None
    context: torch.Tensor
    scale: float
    rules: Rules
    stage: str
    own: bool
    returned: torch.Tensor | None = None
    projection: Projection | None = None
    weights: torch.Tensor | None = None
    extra_keys: tuple[str, ...] = ()
    silenced: frozenset[int] = frozenset()
    dropout: float = 0.0
    turn: int = 0

    @cached_property
    def lse(self) -> torch.Tensor:
        """(batch, heads, queries): log-sum-exps of the scores; one more fused call where the kernel gave none."""
        return log_sum_exps(self.kernel_lse, self.q, self.k, self.v, self.scale, self.rules)

    def mask(self, row: int) -> Mask:
        """The rule of one row of the batch, over all of its positions, padding included."""
        return self.rules.row(row).mask


@dataclass(eq=False)
class Forward:
    """One forward pass of the captured model.

    Attributes:
        number: counted from 0 within the capture.
        module: what was called.
        args, kwargs: with what.
        embedded: ids that went through an embedding of words, in order, each with how many calls of attention had
            been made before.
        calls: how many calls of attention have been made.
        output: what came out, once it has.
        analyst: who knows the masks that were met.
        awaited: the last attention's output, until its projection has read it.
        projections: what read it, for each stack and layer.
        progress: which modules have been entered, which layers have been numbered.
        missed: attention and softmaxes that ran outside of what capture reads, each once.
        unrecorded: those of them that are attention, when the forward pass is over.
        autocast: as autocast_now of headscope.kernels gives it, for the model's devices.
    """

    number: int
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    embedded: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    calls: int = 0
    output: Any = None
    analyst: Analyst = field(default_factory=Analyst)
    awaited: Awaited | None = None
    projections: dict[tuple[Stack, int], Output] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    missed: dict[Missed, None] = field(default_factory=dict)
    unrecorded: tuple[Unrecorded, ...] = ()
    autocast: dict[str, torch.dtype | None] = field(default_factory=dict)


class Consumer(Protocol):
    """Who takes what capture hands over. All methods are called in the thread that runs the model."""

    def begin(self, forward: Forward) -> None:
        """A forward pass begins."""

    def wants(self, stack: Stack, layer: int) -> bool:
        """Whether `take` is to be called for this layer: what isn't wanted costs nothing."""

    def take(self, forward: Forward, call: Call) -> None:
        """One layer has run."""

    def end(self, forward: Forward) -> None:
        """The forward pass is over, `forward.output` is there."""

    def drop(self, forward: Forward) -> None:
        """The forward pass raised: forget what it left."""
