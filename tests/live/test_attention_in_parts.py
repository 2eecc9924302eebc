"""Attention in several calls: chunks of queries are one map, rows of the batch and heads are listed, never a part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from comparing import Mixer, Seen, assert_weights, captured_of, own, passed, refused, weights_of
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture
from largest import Largest

ROWS, HEADS, TOKENS, WIDTH = 3, 4, 12, 8
PLACES = torch.arange(TOKENS)
pytestmark = pytest.mark.usefixtures("no_grad")

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Attention(Mixer):
    """Four heads of 8; `attend` makes contexts (batch, heads, tokens, 8) from q, k and v of the same shape."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(*self.parts(x)).transpose(1, 2).flatten(2))


def model_of(attend: Attend, cls: type[Attention] = Attention) -> Any:
    """Two layers that attend in the same way, between layers that attend at once."""

    def forward(self: Any, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return x

    blocks = nn.ModuleList([Attention(sdpa), cls(attend), cls(attend), Attention(sdpa)])
    return own(forward, embed=nn.Embedding(60, 32), blocks=blocks)


IDS = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS)


def in_chunks(
    sizes: int | list[int],
    mask: torch.Tensor | None = None,
    change: Callable[[torch.Tensor], torch.Tensor] = lambda q: q,
) -> Attend:
    """Chunks of queries over all keys, each with the rows of a mask that are its own."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = q.split(sizes, 2)
        rows = [None] * len(parts) if mask is None else mask.split(sizes, -2)
        return torch.cat([sdpa(change(part), k, v, attn_mask=one) for part, one in zip(parts, rows, strict=True)], 2)

    return attend


def through_a_buffer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Chunks whose masks lie in one place, one after another."""
    room, found = torch.empty(4, TOKENS, dtype=torch.bool), []
    for part, rows in zip(q.split(4, 2), SOME.split(4), strict=True):
        found.append(sdpa(part, k, v, attn_mask=room.copy_(rows)))
    room.fill_(True)
    return torch.cat(found, 2)


def growing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Chunks over the keys up to their own last token; the first passes is_causal."""
    parts = [sdpa(q[:, :, :4], k[:, :, :4], v[:, :, :4], is_causal=True)]
    for start, stop in ((4, 9), (9, 12)):
        mask = (PLACES[None, :stop] <= PLACES[start:stop, None]).float().log()
        parts.append(sdpa(q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], attn_mask=mask))
    return torch.cat(parts, 2)


def sliding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Chunks over the keys at most 3 away, cut out of all keys, into a buffer."""
    found = torch.empty_like(q)
    for start in range(0, TOKENS, 4):
        keys = slice(max(0, start - 3), min(TOKENS, start + 7))
        near = (PLACES[None, keys] - PLACES[start : start + 4, None]).abs() <= 3
        found[:, :, start : start + 4] = sdpa(q[:, :, start : start + 4], k[:, :, keys], v[:, :, keys], attn_mask=near)
    return found


def by_flex_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    def part(start: int) -> torch.Tensor:
        def masked(score: Any, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
            return torch.where(i + start >= j, score + BIAS[h, i + start, j], -float("inf"))

        return flex_attention(q[:, :, start : start + 5], k, v, score_mod=masked)

    return torch.cat([part(start) for start in (0, 5, 10)], 2)


def buffers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Row by row, through memory that is used again, and changed in place afterwards."""
    room, found = [torch.empty_like(x[:1]) for x in (q, k, v)], []
    for row in range(len(q)):
        for place, x in zip(room, (q, k, v), strict=True):
            place.copy_(x[row : row + 1])
        found.append(sdpa(*room))
    for place in room:
        place.zero_()
    return torch.cat(found)


def of_rows_and_their_masks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    allowed = [(TOKENS - row > PLACES)[None, None, None] for row in range(len(q))]
    return torch.cat([sdpa(*(x[row : row + 1] for x in (q, k, v)), attn_mask=allowed[row]) for row in range(len(q))])


BIAS = torch.randn(HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1))
FULL, BELOW = torch.zeros(TOKENS, TOKENS), torch.ones(TOKENS, TOKENS).tril().log()
BLOCKS = (PLACES[:, None] // 5 == PLACES[None] // 5).float().log()
NEAR = ((PLACES[:, None] - PLACES[None]).abs() <= 3).float().log()
HIDDEN = ((PLACES < 9) & (PLACES != 5) & (PLACES[None] <= PLACES[:, None])).float().log()
EARLIER = (PLACES[None] < PLACES[:, None]).float().log()
OF_HEADS_RANGES = (torch.arange(HEADS * TOKENS).view(HEADS, TOKENS, 1) % 13 >= PLACES).float().log()
SOME = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(2)) + torch.eye(TOKENS) > 0.5

JOINED: dict[str, tuple[Attend, torch.Tensor]] = {
    "equal chunks": (in_chunks(4), FULL),
    "a shorter last chunk": (in_chunks(5), FULL),
    "unequal chunks": (in_chunks([1, 7, 4]), FULL),
    "one query at a time": (in_chunks(1), FULL),
    "copies of chunks": (in_chunks(5, change=torch.clone), FULL),
    "keys made again for each chunk": (
        lambda q, k, v: torch.cat([sdpa(part, k.clone(), v + 0) for part in q.split(5, 2)], 2),
        FULL,
    ),
    "windows of keys": (
        lambda *qkv: torch.cat([sdpa(*part) for part in zip(*(x.split(5, 2) for x in qkv), strict=True)], 2),
        BLOCKS,
    ),
    "causal windows of keys": (
        lambda *qkv: torch.cat(
            [sdpa(*part, is_causal=True) for part in zip(*(x.split(5, 2) for x in qkv), strict=True)], 2
        ),
        BLOCKS + BELOW,
    ),
    "causal, with an offset": (in_chunks(5, BELOW == 0), BELOW),
    "causal, the smallest number": (in_chunks(5, BELOW.clamp(min=torch.finfo().min)), BELOW),
    "near, with an offset": (in_chunks(4, NEAR), NEAR),
    "padding and a hidden key": (in_chunks(5, HIDDEN == 0), HIDDEN),
    "a query without keys": (in_chunks(4, EARLIER == 0), EARLIER),
    "other ranges in each head": (in_chunks(5, OF_HEADS_RANGES[None]), OF_HEADS_RANGES),
    "no ranges": (in_chunks([1, 7, 4], SOME), SOME.float().log()),
    "masks in a buffer": (through_a_buffer, SOME.float().log()),
    "numbers for each head": (in_chunks(6, BIAS[None]), BIAS),
    "numbers in the last chunk alone": (
        lambda q, k, v: torch.cat([sdpa(q[:, :, :8], k, v), sdpa(q[:, :, 8:], k, v, attn_mask=BIAS[None, :, 8:])], 2),
        torch.cat([torch.zeros(HEADS, 8, TOKENS), BIAS[:, 8:]], 1),
    ),
    "flex attention": (by_flex_attention, BIAS + BELOW),
}
OF_ROWS, OF_HEADS = "in 3 parts over rows of the batch", "in 4 parts over heads"
NOT_JOINED: dict[str, tuple[Attend, str]] = {
    "rows": (
        lambda *qkv: torch.cat([sdpa(*(x[row : row + 1] for x in qkv), is_causal=True) for row in range(ROWS)]),
        OF_ROWS,
    ),
    "two rows and one": (
        lambda *qkv: torch.cat([sdpa(*(x[rows] for x in qkv)) for rows in (slice(2), slice(2, 3))]),
        "in 2 parts over rows of the batch",
    ),
    "rows and their masks": (of_rows_and_their_masks, OF_ROWS),
    "rows in a buffer": (buffers, OF_ROWS),
    "rows without a batch": (
        lambda q, k, v: torch.stack([sdpa(q[row], k[row], v[row]) for row in range(len(q))]),
        OF_ROWS,
    ),
    "heads": (lambda q, k, v: torch.stack([sdpa(q[:, at], k[:, at], v[:, at]) for at in range(HEADS)], 1), OF_HEADS),
    "heads, with an axis": (
        lambda *qkv: torch.cat([sdpa(*(x[:, at : at + 1] for x in qkv)) for at in range(HEADS)], 1),
        OF_HEADS,
    ),
    "heads with one key": (
        lambda q, k, v: torch.stack([sdpa(q[:, at], k[:, 0], v[:, 0]) for at in range(HEADS)], 1),
        OF_HEADS,
    ),
}


def check(model: Any, mask: torch.Tensor, mode: Any = torch.no_grad) -> None:
    """Every cell of every trace, its tokens, its place in the batch, and what its heads write."""
    with mode():
        watched, captured = passed(model, IDS)
    assert captured.stacks == ("self",)
    assert captured.unrecorded == ()
    assert [trace.row for trace in captured.traces] == [*range(ROWS)]
    assert torch.equal(model(IDS), watched)
    x = model.embed(IDS)
    for layer, block in enumerate(model.blocks):
        weights = weights_of(block, x, mask if layer in (1, 2) else FULL)
        written = block(x)
        assert_weights(captured, {layer: weights})
        for trace in captured.traces:
            total = sum(trace[layer, head].output for head in range(HEADS)) + block.out.bias.numpy()
            np.testing.assert_allclose(total, written[trace.row].numpy()[trace.positions], atol=1e-5)
            assert trace.ids == tuple(IDS[trace.row, trace.positions].tolist())
        x = x + written
    assert all(trace.verify(reference=False).agrees for trace in captured.traces)


MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)
"""The ways take turns in them, but flex attention, which has no gradients on a CPU."""


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "mode"),
    [*((way, MODES[at % 3]) for at, way in enumerate(list(JOINED)[:-1])), ("flex attention", torch.no_grad)],
)
def test_parts_are_put_together(way: str, mode: Any) -> None:
    attend, mask = JOINED[way]
    check(model_of(attend), mask, mode)


def error_of(
    model: nn.Module, parts: str, where: str = r"blocks\.1 \(Attention\)", numbers: tuple[int, ...] = (0, 3)
) -> str:
    """The error of a model whose layers 1 and 2 attend in parts; without `strict` they are listed."""
    message = rf"not recorded: scaled_dot_product_attention {parts} in {where}"
    raised = refused(message, model, IDS)
    captured = captured_of(model, IDS, options={"strict": False})
    assert [one.module.split(".")[:2] for one in captured.unrecorded] == [["blocks", "1"], ["blocks", "2"]]
    assert {(trace.numbers, len(trace.unrecorded)) for trace in captured.traces} == {(numbers, 2)}
    return str(raised)


@pytest.mark.parametrize("way", NOT_JOINED)
def test_parts_over_rows_or_heads_are_refused(way: str) -> None:
    attend, parts = NOT_JOINED[way]
    assert "let each layer attend to all rows of the batch with all its heads in one call" in error_of(
        model_of(attend), parts
    )


CHUNK, LONG = 40, 600
FAR = torch.arange(LONG)[:, None] - torch.arange(LONG)
CLOSE = (FAR.abs() <= 9).float().log()


@pytest.mark.parametrize(("seen", "rule"), [(FAR >= 0, (True, None)), (CLOSE, (False, (9, 9)))])
def test_masks_of_chunks_take_linear_memory(seen: torch.Tensor, rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All chunks' masks together are a map of all pairs, which nobody holds."""
    monkeypatch.setattr("headscope.live.masks.cells.BLOCK_CELLS", CHUNK * LONG)
    model, x = Attention(in_chunks(CHUNK, seen)), torch.randn(1, LONG, 32)
    with Largest() as largest:
        mask = captured_of(model, x).trace[0].mask
    assert (mask.causal, mask.window, mask.bias) == (*rule, None)
    assert CHUNK * LONG <= largest.cells < LONG * LONG / 4


class WithInner(Attention):
    """A loop around a module of its own without projections, as some libraries have it."""

    def __init__(self, attend: Any) -> None:
        super().__init__(attend)
        self.inner = own(lambda self, q, k, v: sdpa(q, k, v))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(self.inner, *self.parts(x)).transpose(1, 2).flatten(2))


def test_a_loop_around_a_module_without_projections() -> None:
    chunks = lambda inner, q, k, v: torch.cat([inner(part, k, v) for part in q.split(5, 2)], 2)  # noqa: E731
    model = model_of(chunks, WithInner)
    traces, x = captured_of(model, IDS)["blocks.*.inner"], model.embed(IDS)
    assert_weights(traces, {1: weights_of(model.blocks[1], x + model.blocks[0](x), FULL)})
    assert [trace.ids for trace in traces] == list(map(tuple, IDS.tolist()))


def test_a_loop_over_rows_around_a_module_without_projections() -> None:
    rows = lambda inner, *qkv: torch.cat([inner(*(x[at : at + 1] for x in qkv)) for at in range(ROWS)])  # noqa: E731
    error_of(model_of(rows, WithInner), OF_ROWS, r"blocks\.1\.inner \(Own\)", (0, 1))


def windows_of_copies(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.cat(
        [sdpa(*(x.clone() for x in part)) for part in zip(*(x.split(4, 2) for x in (q, k, v)), strict=True)], 2
    )


UNKNOWN: dict[str, Attend] = {
    "growing keys": growing,
    "overlapping windows": sliding,
    "windows in another order": lambda q, k, v: torch.cat(
        [sdpa(*part) for part in zip(q.split(4, 2), k.split(4, 2)[::-1], v.split(4, 2)[::-1], strict=True)], 2
    ),
    "windows of other values": lambda q, k, v: torch.cat(
        [sdpa(*part) for part in zip(q.split(6, 2), k.split(6, 2), v.split(6, 2)[::-1], strict=True)], 2
    ),
    "from the last to the first": lambda q, k, v: torch.cat([sdpa(x, k, v) for x in q.split(4, 2)[::-1]][::-1], 2),
    "changed before a Linear reads them": lambda q, k, v: in_chunks(4)(q, k, v) * 2,
    "windows of keys that are copies": windows_of_copies,
    "only some of the rows": lambda *qkv: nn.functional.pad(sdpa(*(x[1:] for x in qkv)), (0,) * 6 + (1, 0)),
    "several scales": lambda q, k, v: torch.cat(
        [sdpa(q[:, :, at : at + 4], k, v, scale=0.1 * (1 + at)) for at in (0, 4, 8)], 2
    ),
}


@pytest.mark.parametrize("way", UNKNOWN)
def test_parts_at_unknown_positions_are_reported(way: str) -> None:
    error_of(model_of(UNKNOWN[way]), r"(in \d parts at unknown positions|over other rows than it was given)")


class Flat(Attention):
    """Attention over an image (batch, rows, columns, width), whose projection reads one sequence of all tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.attend(*self.parts(x.flatten(1, 2))).transpose(1, 2).flatten(2)
        return self.out(mixed.flatten(0, 1)).view(x.shape)


def test_rows_of_images_are_not_taken_for_chunks_of_one_sequence() -> None:
    """No argument says how many rows and tokens there are, and the contexts fit both."""
    model, image = Flat(NOT_JOINED["rows"][0]), torch.randn(ROWS, 3, 4, 32)
    refused("in 3 parts at unknown positions", model, image)


class EachProjected(Attention):
    """Each row is projected by itself: nothing shows which row it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [self.out(sdpa(*self.parts(x[at : at + 1])).transpose(1, 2).flatten(2)) for at in range(len(x))]
        return torch.cat(rows)


def test_rows_that_are_projected_one_by_one_are_reported() -> None:
    refused("in 3 parts at unknown positions", model_of(sdpa, EachProjected), IDS)


Loop = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def looped(inner: nn.Module, loop: Loop) -> Any:
    """A loop around a whole module, over rows or over chunks."""
    return own(lambda self, ids: loop(self.inner, self.embed(ids)), embed=nn.Embedding(60, 32), inner=inner)


def image(inner: nn.Module, loop: Loop) -> Any:
    """The same, over an image, whose number of tokens no argument shows."""
    return own(lambda self, x: loop(self.inner, self.patch(x).flatten(2).mT), patch=nn.Conv2d(1, 32, 2, 2), inner=inner)


class TokensFirst(Attention):
    """Hidden states (tokens, rows, width), whose projection reads one sequence of all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.attend(*self.parts(x.transpose(0, 1))).permute(2, 0, 1, 3).flatten(2)
        return self.out(mixed.flatten(0, 1)).view(x.shape)


@torch.no_grad()
def test_tokens_first() -> None:
    model = looped(TokensFirst(in_chunks(5)), lambda inner, x: inner(x.transpose(0, 1)))
    assert_weights(captured_of(model, IDS), [weights_of(model.inner, model.embed(IDS), FULL)])
    model.inner.attend = NOT_JOINED["heads"][0]
    refused("in 4 parts over heads", model, IDS)


def mha(module: Any, query: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return module(query, x, x, need_weights=False)[0]


AROUND: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "rows": (lambda: Attention(sdpa), lambda inner, x: torch.cat([inner(x[at : at + 1]) for at in range(len(x))])),
    "chunks": (lambda: Attention(sdpa), lambda inner, x: torch.cat([inner(part) for part in x.split(4, 1)], 1)),
    "rows of nn.MultiheadAttention, without a batch": (
        lambda: nn.MultiheadAttention(32, 4, batch_first=True),
        lambda inner, x: torch.stack([mha(inner, row, row) for row in x]),
    ),
    "chunks of its queries": (
        lambda: nn.MultiheadAttention(32, 4, batch_first=True),
        lambda inner, x: torch.cat([mha(inner, part, x) for part in x.split(4, 1)], 1),
    ),
    "rows of blocks": (
        lambda: nn.Sequential(*(nn.Sequential(nn.LayerNorm(32), Attention(sdpa)) for _ in range(2))),
        lambda inner, x: torch.cat([inner(x[at : at + 1]) for at in range(len(x))]),
    ),
}


@pytest.mark.parametrize("way", AROUND)
@pytest.mark.parametrize("around", [looped, image])
def test_a_loop_around_a_module_is_refused(around: Callable[..., Any], way: str) -> None:
    """Without that, its calls would be taken for layers that share the module."""
    make, loop = AROUND[way]
    given = IDS if around is looped else torch.randn(ROWS, 1, 8, 6)
    refused("several times in one forward pass", around(make(), loop), given)


def test_a_module_called_around_its_hooks_is_refused_if_it_attends_again() -> None:
    model = looped(Attention(lambda q, k, v: sdpa(q, k, v) - sdpa(k, q, v)), lambda inner, x: inner.forward(x))
    refused("around its hooks", model, IDS)


@pytest.mark.parametrize("heads", [4, 1])
def test_two_maps_of_all_tokens_are_two_stacks(heads: int) -> None:
    """The difference of two maps: no Linear reads them side by side, and each is whole."""

    def difference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x[:, :heads] for x in (q, k, v))
        return (sdpa(q, k, v) - 0.5 * sdpa(k, q, v)).expand(-1, HEADS, -1, -1)

    model = model_of(difference)
    captured, x = captured_of(model, IDS), model.embed(IDS)
    q, k, _ = (part[:, :heads] for part in model.blocks[1].parts(x + model.blocks[0](x)))
    assert captured.stacks == ("self", "self.2")
    assert_weights(captured["self.2"], {1: (k @ q.mT * WIDTH**-0.5).softmax(-1)})


def test_queries_that_are_some_of_the_tokens_are_not_taken_for_the_last() -> None:
    model = looped(Attention(lambda q, k, v: sdpa(q[:, :, :1], k, v)), lambda inner, x: inner(x))
    for trace in captured_of(model, IDS).traces:
        assert (len(trace.queries), trace.keys.ids) == (1, tuple(IDS[trace.row].tolist()))
        assert trace.keys is not trace.queries


@pytest.mark.parametrize("mask", [FULL, BELOW, OF_HEADS_RANGES, BIAS])
def test_no_batch_at_all(mask: torch.Tensor) -> None:
    """(heads, tokens, width): the first axis is that of the heads, which the output projection proves."""
    given = mask if mask is BIAS else mask == 0
    block = Attention(lambda q, k, v: sdpa(q[0], k[0], v[0], attn_mask=given)[None])
    model = looped(block, lambda inner, x: inner(x))
    trace = captured_of(model, IDS[1:2]).trace
    assert_weights([trace], [weights_of(block, model.embed(IDS[1:2]), mask)])
    assert trace.ids == tuple(IDS[1, trace.positions].tolist())


FOLDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "rows first": (lambda x: x.flatten(0, 1), lambda x: x.unflatten(0, (-1, HEADS))),
    "heads first": (lambda x: x.transpose(0, 1).flatten(0, 1), lambda x: x.unflatten(0, (HEADS, -1)).transpose(0, 1)),
    "heads first, in pieces": (lambda x: torch.cat(x.unbind(1)), lambda x: torch.stack(x.chunk(HEADS), 1)),
    "rows first, with an axis": (lambda x: x.flatten(0, 1)[:, None], lambda x: x[:, 0].unflatten(0, (-1, HEADS))),
}
"""Ways in which rows and heads lie on one axis, and back."""


def folded(way: str, mask: torch.Tensor | None, **options: Any) -> Attend:
    fold, back = FOLDS[way]

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        given = None if mask is None else mask if mask.dim() == 2 else fold(mask.expand(len(qkv[0]), -1, -1, -1))
        return back(sdpa(*map(fold, qkv), attn_mask=given, **options))

    return attend


@pytest.mark.parametrize("mask", [FULL, BELOW, OF_HEADS_RANGES, BIAS])
@pytest.mark.parametrize("way", FOLDS)
def test_rows_and_heads_on_one_axis(way: str, mask: torch.Tensor) -> None:
    """Which of them an entry of the axis is, is proven by the output projection, as well."""
    check(model_of(folded(way, mask if mask is BIAS else mask == 0)), mask)
    if mask is FULL:
        check(model_of(folded(way, None)), mask)
        check(model_of(folded(way, None, is_causal=True)), BELOW)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", FOLDS)
def test_rows_and_heads_on_one_axis_of_flex_attention(way: str) -> None:
    fold, back = FOLDS[way]
    by_key = torch.arange(HEADS)[:, None] * PLACES * -0.1

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        numbers = fold(by_key[None, :, None].expand(len(qkv[0]), -1, -1, -1)).view(-1, TOKENS)

        def more(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + numbers[b, j]

        found = flex_attention(*(fold(x).view(-1, 1, TOKENS, WIDTH) for x in qkv), score_mod=more)
        return back(found if way.endswith("axis") else found[:, 0])

    check(model_of(attend), by_key[:, None].expand(-1, TOKENS, -1))


def test_rows_and_heads_on_one_axis_are_refused_where_no_projection_proves_them() -> None:
    def scaled(*qkv: torch.Tensor) -> torch.Tensor:
        return folded("rows first", None)(*qkv) * 2

    error_of(model_of(scaled), "over other rows than it was given")
    model = model_of(folded("rows first", None))
    with pytest.raises(UnsupportedError, match="attends in parts"), ablate(model, [(1, 0)]):
        model(IDS)


@pytest.mark.parametrize(
    ("attend", "at_once"), [(in_chunks(5), sdpa), (NOT_JOINED["rows"][0], partial(sdpa, is_causal=True))]
)
def test_heads_of_parts_are_silenced(attend: Attend, at_once: Attend) -> None:
    """In every row, too; a capture lists what is in several parts, or has it as silenced."""
    model = model_of(attend)
    with ablate(model, [(1, 2)]), capture(model, strict=False) as captured:
        watched = model(IDS)
    for at in (1, 2):
        model.blocks[at].attend = at_once
    with ablate(model, [(1, 2)]):
        torch.testing.assert_close(watched, model(IDS))
    if at_once is sdpa:
        assert captured.unrecorded == ()
        assert all(trace.ablated == {(1, 2)} for trace in captured.traces)
        assert all(trace.verify().agrees for trace in captured.traces)


@pytest.mark.parametrize(
    ("attend", "head", "how", "message"),
    [
        (NOT_JOINED["heads"][0], 0, "zero", "attends in parts"),
        (NOT_JOINED["rows without a batch"][0], 0, "zero", "attends in parts"),
        (in_chunks(4), 2, "mean", "attends in parts"),
        (NOT_JOINED["heads"][0], 2, "zero", "there is no head 2"),
    ],
)
def test_heads_that_a_part_does_not_show_are_not_silenced(attend: Attend, head: int, how: str, message: str) -> None:
    model, kind = model_of(attend), InputError if "no head" in message else UnsupportedError
    with pytest.raises(kind, match=message), ablate(model, {(1, head): how}):
        model(IDS)


VISION = {"depth": 2, "embed_dim": 32, "num_heads": 4, "hidden_size": 32, "patch_size": 4, "in_channels": 3}


@pytest.mark.parametrize("sizes", [((4, 4), (2, 4), (4, 2)), ((4, 4), (4, 4))])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_several_images_in_one_sequence(implementation: str, sizes: tuple[tuple[int, int], ...]) -> None:
    """Qwen2-VL calls its attention once for each image, and has one sequence of the patches of all."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel as Vision

    model = Vision(Qwen2VLVisionConfig(**VISION, attn_implementation=implementation)).eval()
    grid = torch.tensor([(1, *size) for size in sizes])
    ends = grid.prod(1).cumsum(0).tolist()
    patches = torch.randn(32, 96, generator=torch.Generator().manual_seed(2))
    captured = captured_of(model, patches, grid)
    model.set_attn_implementation("sdpa")
    with Seen() as seen:
        model(patches, grid)
    model.set_attn_implementation(implementation)
    trace = captured.trace
    assert (captured.stacks, len(trace.queries), trace.numbers) == (("self",), 32, (0, 1))
    weights = torch.zeros(2, 1, 4, 32, 32)
    for (layer, (start, stop)), (q, k, _) in zip(product(range(2), pairwise([0, *ends])), seen.calls, strict=True):
        weights[layer, 0, :, start:stop, start:stop] = (q[0] @ k[0].mT * WIDTH**-0.5).softmax(-1)
    assert_weights([trace], weights, 1e-5)
    assert trace.verify().agrees
