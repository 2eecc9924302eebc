"""Attention in several calls: chunks of queries are one map, rows of the batch and heads are listed, never a part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparing import Mixer, captured_of
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture
from headscope.live.masks.cells import Cells
from headscope.live.seeing.parts import compact

ROWS, HEADS, TOKENS, WIDTH = 3, 4, 12, 8
PLACES = torch.arange(TOKENS)

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Attention(Mixer):
    """Four heads of 8; `attend` makes contexts (batch, heads, tokens, 8) from q, k and v of the same shape."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(*self.parts(x)).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Two layers that attend in the same way, between layers that attend at once."""

    def __init__(self, attend: Attend, cls: type[Attention] = Attention) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(60, 32)
        self.blocks = nn.ModuleList([Attention(sdpa), cls(attend), cls(attend), Attention(sdpa)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return x


IDS = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS)


def in_chunks(sizes: int | list[int], change: Callable[[torch.Tensor], torch.Tensor] = lambda q: q) -> Attend:
    return lambda q, k, v: torch.cat([sdpa(change(part), k, v) for part in q.split(sizes, 2)], 2)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Chunks with an offset, over all keys."""
    below = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    return torch.cat([sdpa(q[:, :, at : at + 5], k, v, attn_mask=below[at : at + 5]) for at in (0, 5, 10)], 2)


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


def near(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Chunks over all keys, of which those at most 3 away are seen."""
    seen = [(PLACES[None] - PLACES[at : at + 4, None]).abs() <= 3 for at in (0, 4, 8)]
    return torch.cat([sdpa(part, k, v, attn_mask=mask) for part, mask in zip(q.split(4, 2), seen, strict=True)], 2)


def by_flex_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    def part(start: int) -> torch.Tensor:
        def masked(score: Any, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
            return torch.where(i + start >= j, score + BIAS[h, i + start, j], -float("inf"))

        return flex_attention(q[:, :, start : start + 5], k, v, score_mod=masked)

    return torch.cat([part(start) for start in (0, 5, 10)], 2)


def per_head_biases(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.cat([sdpa(q[:, :, at : at + 6], k, v, attn_mask=BIAS[None, :, at : at + 6]) for at in (0, 6)], 2)


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

JOINED: dict[str, tuple[Attend, torch.Tensor]] = {
    "equal chunks": (in_chunks(4), FULL),
    "a shorter last chunk": (in_chunks(5), FULL),
    "unequal chunks": (in_chunks([1, 7, 4]), FULL),
    "one query at a time": (in_chunks(1), FULL),
    "copies of chunks": (in_chunks(5, torch.clone), FULL),
    "keys made again for each chunk": (
        lambda q, k, v: torch.cat([sdpa(part, k.clone(), v + 0) for part in q.split(5, 2)], 2),
        FULL,
    ),
    "windows of keys": (
        lambda *qkv: torch.cat([sdpa(*part) for part in zip(*(x.split(5, 2) for x in qkv), strict=True)], 2),
        BLOCKS,
    ),
    "causal, with an offset": (causal, BELOW),
    "near, with an offset": (near, NEAR),
    "numbers for each head": (per_head_biases, BIAS),
    "flex attention": (by_flex_attention, BIAS + BELOW),
}
OF_ROWS, OF_HEADS = "3 parts over rows of the batch", "4 parts over heads"
NOT_JOINED: dict[str, tuple[Attend, str]] = {
    "rows": (
        lambda *qkv: torch.cat([sdpa(*(x[row : row + 1] for x in qkv), is_causal=True) for row in range(ROWS)]),
        OF_ROWS,
    ),
    "two rows and one": (
        lambda *qkv: torch.cat([sdpa(*(x[rows] for x in qkv)) for rows in (slice(2), slice(2, 3))]),
        "2 parts over rows of the batch",
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


def expected(block: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(batch, heads, queries, keys) by the formula."""
    q, k, _ = block.parts(x)
    return (q @ k.mT * WIDTH**-0.5 + mask).softmax(-1)


def check(model: Model, mask: torch.Tensor) -> None:
    """Every cell of every trace, its tokens, its place in the batch, and what its heads write."""
    with torch.no_grad():
        alone = model(IDS)
        with capture(model) as captured:
            watched = model(IDS)
        assert torch.equal(alone, watched)
        assert captured.stacks == ("self",)
        assert captured.unrecorded == ()
        assert [trace.row for trace in captured.traces] == [*range(ROWS)]
        x = model.embed(IDS)
        for layer, block in enumerate(model.blocks):
            weights = expected(block, x, mask if layer in (1, 2) else FULL)
            written = block(x)
            for trace in captured.traces:
                kept = np.ix_(range(HEADS), trace.positions, trace.key_positions)
                np.testing.assert_allclose(trace[layer].weights[...], weights[trace.row].numpy()[kept], atol=1e-6)
                total = sum(trace[layer, head].output for head in range(HEADS)) + block.out.bias.numpy()
                np.testing.assert_allclose(total, written[trace.row].numpy()[trace.positions], atol=1e-5)
                assert trace.ids == tuple(IDS[trace.row, trace.positions].tolist())
            x = x + written
        assert all(trace.verify().agrees for trace in captured.traces)


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", JOINED)
def test_parts_are_put_together(way: str) -> None:
    attend, mask = JOINED[way]
    check(Model(attend), mask)


def error_of(
    model: nn.Module, parts: str, where: str = r"blocks\.1 \(Attention\)", numbers: tuple[int, ...] = (0, 3)
) -> str:
    """The error of a model whose layers 1 and 2 attend in parts; without `strict` they are listed."""
    message = rf"not recorded: scaled_dot_product_attention in {parts} in {where}"
    with torch.no_grad(), pytest.raises(UnsupportedError, match=message) as raised, capture(model):
        model(IDS)
    with torch.no_grad(), capture(model, strict=False) as captured:
        model(IDS)
    assert [one.module.split(".")[:2] for one in captured.unrecorded] == [["blocks", "1"], ["blocks", "2"]]
    assert {(trace.numbers, len(trace.unrecorded)) for trace in captured.traces} == {(numbers, 2)}
    return str(raised.value)


@pytest.mark.parametrize("way", NOT_JOINED)
def test_parts_over_rows_or_heads_are_refused(way: str) -> None:
    attend, parts = NOT_JOINED[way]
    assert "let each layer attend to all rows of the batch with all its heads in one call" in error_of(
        Model(attend), parts
    )


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("way", ["a shorter last chunk", "windows of keys"])
def test_in_every_mode(way: str, mode: Any) -> None:
    attend, mask = JOINED[way]
    model = Model(attend)
    with mode(), capture(model) as captured:
        model(IDS)
    with torch.no_grad():
        x = model.embed(IDS)
        x = x + model.blocks[0](x)
        weights = expected(model.blocks[1], x, mask)
    for trace in captured.traces:
        np.testing.assert_allclose(trace[1].weights[...], weights[trace.row], atol=1e-6)


def test_rules_are_found_in_masks_of_parts() -> None:
    for way, causal_rule, window in (("causal, with an offset", True, None), ("near, with an offset", False, (3, 3))):
        model = Model(JOINED[way][0])
        captured = captured_of(model, IDS)
        mask = captured.traces[0][1].mask
        assert (mask.causal, mask.window, mask.bias) == (causal_rule, window, None)


MASKS = {
    "a chunk of a causal map": PLACES[None] <= torch.arange(4, 9)[:, None],
    "a window": (PLACES[None] - torch.arange(4, 9)[:, None]).abs() <= 3,
    "padding and a hidden key": (PLACES < 9) & (PLACES != 5) & (PLACES[None] <= torch.arange(4, 9)[:, None]),
    "a query without keys": PLACES[None] < torch.arange(5)[:, None],
    "one query": PLACES[None] <= 7,
    "all keys": torch.ones(5, TOKENS, dtype=torch.bool),
    "other ranges in each head": torch.arange(10).view(2, 5, 1) >= PLACES,
}


@pytest.mark.parametrize("masked", [None, -torch.inf, torch.finfo().min], ids=["bool", "-inf", "the smallest number"])
@pytest.mark.parametrize("name", MASKS)
def test_a_compact_mask_has_the_same_cells(name: str, masked: float | None) -> None:
    mask = MASKS[name].expand(1, *(1,) * (3 - MASKS[name].dim()), *MASKS[name].shape)
    mask = mask if masked is None else torch.zeros(mask.shape).masked_fill(~mask, masked)
    found = compact(mask, mask.shape[2])
    assert isinstance(found, Cells)
    assert (found.shape, found.dtype) == (mask.shape, mask.dtype)
    assert torch.equal(found[0][:, :], mask[0])
    assert torch.equal(found[0][:, 1:2, 3:], mask[0][:, 1:2, 3:])
    assert torch.equal(found.transpose(0, 1)[0][:, :], mask[:, 0])


def test_a_mask_without_ranges_is_copied() -> None:
    mask = torch.rand(1, 2, 5, TOKENS) < 0.5
    for x in (mask, mask.float() * 0.5 + torch.eye(5, TOKENS), BIAS[None], torch.full((1, 1, 2, 3), torch.nan)):
        found = compact(x, x.shape[2])
        assert isinstance(found, torch.Tensor)
        assert found.data_ptr() != x.data_ptr()
        torch.testing.assert_close(found, x, rtol=0, atol=0, equal_nan=True)
    shared = mask[:, :, :1].expand(1, 2, 5, TOKENS)  # one row for all queries is linear as it is
    assert isinstance(compact(shared, 5), torch.Tensor)


CHUNK, LONG = 40, 600


def in_long_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Chunks of a long text, each with the part of a causal mask that is its own."""
    starts = range(0, LONG, CHUNK)
    below = ((torch.arange(LONG)[None] <= torch.arange(at, at + CHUNK)[:, None]).float().log() for at in starts)
    return torch.cat([sdpa(part, k, v, attn_mask=mask) for part, mask in zip(q.split(CHUNK, 2), below, strict=True)], 2)


def test_masks_of_chunks_take_linear_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All chunks' masks together are a map of all pairs, which nobody holds."""
    monkeypatch.setattr("headscope.live.masks.cells.BLOCK_CELLS", CHUNK * LONG)
    model, x = Attention(in_long_chunks), torch.randn(1, LONG, 32)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile, capture(model) as captured:
        model(x)
    mask = captured.trace[0].mask
    assert (mask.causal, mask.window, mask.bias) == (True, None, None)
    assert max(event.self_cpu_memory_usage for event in profile.events() or ()) < LONG * LONG


class Inner(nn.Module):
    """Attention without projections, as some libraries have it."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v)


class WithInner(Attention):
    """A loop around a module of its own."""

    def __init__(self, attend: Any) -> None:
        super().__init__(attend)
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(self.inner, *self.parts(x)).transpose(1, 2).flatten(2))


def test_a_loop_around_a_module_without_projections() -> None:
    chunks = lambda inner, q, k, v: torch.cat([inner(part, k, v) for part in q.split(5, 2)], 2)  # noqa: E731
    model = Model(chunks, WithInner)
    with torch.no_grad(), capture(model) as captured:
        model(IDS)
        x = model.embed(IDS)
        x = x + model.blocks[0](x)
        weights = expected(model.blocks[1], x, FULL)
    for trace in captured["blocks.*.inner"]:
        np.testing.assert_allclose(trace[1].weights[...], weights[trace.row], atol=1e-6)
        assert trace.ids == tuple(IDS[trace.row].tolist())


def test_a_loop_over_rows_around_a_module_without_projections() -> None:
    rows = lambda inner, *qkv: torch.cat([inner(*(x[at : at + 1] for x in qkv)) for at in range(ROWS)])  # noqa: E731
    error_of(Model(rows, WithInner), OF_ROWS, r"blocks\.1\.inner \(Inner\)", (0, 1))


def only_some_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    found = torch.zeros_like(q)
    found[1:] = sdpa(q[1:], k[1:], v[1:])
    return found


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
    "only some of the rows": only_some_rows,
    "several scales": lambda q, k, v: torch.cat(
        [sdpa(q[:, :, at : at + 4], k, v, scale=0.1 * (1 + at)) for at in (0, 4, 8)], 2
    ),
}


@pytest.mark.parametrize("way", UNKNOWN)
def test_parts_at_unknown_positions_are_reported(way: str) -> None:
    error_of(Model(UNKNOWN[way]), r"\d parts? at unknown positions")


class Flat(Attention):
    """Attention over an image (batch, rows, columns, width), whose projection reads one sequence of all tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.attend(*self.parts(x.flatten(1, 2))).transpose(1, 2).flatten(2)
        return self.out(mixed.flatten(0, 1)).view(x.shape)


def test_rows_of_images_are_not_taken_for_chunks_of_one_sequence() -> None:
    """No argument says how many rows and tokens there are, and the contexts fit both."""
    model, image = Flat(NOT_JOINED["rows"][0]), torch.randn(ROWS, 3, 4, 32)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="in 3 parts at unknown positions"), capture(model):
        model(image)


class EachProjected(Attention):
    """Each row is projected by itself: nothing shows which row it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [self.out(sdpa(*self.parts(x[at : at + 1])).transpose(1, 2).flatten(2)) for at in range(len(x))]
        return torch.cat(rows)


def test_rows_that_are_projected_one_by_one_are_reported() -> None:
    model = Model(sdpa, EachProjected)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="in 3 parts at unknown positions"), capture(model):
        model(IDS)


class Looped(nn.Module):
    """A loop around a whole module, over rows or over chunks."""

    def __init__(self, inner: nn.Module, loop: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 32)
        self.inner = inner
        self.loop = loop

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.loop(self.inner, self.embed(ids))


class Image(Looped):
    """The same, over an image, whose number of tokens no argument shows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.patch = nn.Conv2d(1, 32, 2, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.loop(self.inner, self.patch(image).flatten(2).mT)


class TokensFirst(Attention):
    """Hidden states (tokens, rows, width), whose projection reads one sequence of all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.attend(*self.parts(x.transpose(0, 1))).permute(2, 0, 1, 3).flatten(2)
        return self.out(mixed.flatten(0, 1)).view(x.shape)


@torch.no_grad()
def test_tokens_first() -> None:
    model = Looped(TokensFirst(in_chunks(5)), lambda inner, x: inner(x.transpose(0, 1)))
    captured = captured_of(model, IDS)
    weights = expected(model.inner, model.embed(IDS), FULL)
    for trace in captured.traces:
        np.testing.assert_allclose(trace[0].weights[...], weights[trace.row], atol=1e-6)
    model.inner.attend = NOT_JOINED["heads"][0]
    with pytest.raises(UnsupportedError, match="in 4 parts over heads"):
        captured_of(model, IDS)


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
@pytest.mark.parametrize("cls", [Looped, Image])
def test_a_loop_around_a_module_is_refused(cls: type[Looped], way: str) -> None:
    """Without that, its calls would be taken for layers that share the module."""
    make, loop = AROUND[way]
    model = cls(make(), loop).eval()
    given = IDS if cls is Looped else torch.randn(ROWS, 1, 8, 6)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="several times in one forward pass"), capture(model):
        model(given)


def test_a_module_called_around_its_hooks_is_refused_if_it_attends_again() -> None:
    model = Looped(Attention(lambda q, k, v: sdpa(q, k, v) - sdpa(k, q, v)), lambda inner, x: inner.forward(x))
    with torch.no_grad(), pytest.raises(UnsupportedError, match="around its hooks"), capture(model):
        model(IDS)


@pytest.mark.parametrize("heads", [4, 1])
def test_two_maps_of_all_tokens_are_two_stacks(heads: int) -> None:
    """The difference of two maps: no Linear reads them side by side, and each is whole."""

    def difference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x[:, :heads] for x in (q, k, v))
        return (sdpa(q, k, v) - 0.5 * sdpa(k, q, v)).expand(-1, HEADS, -1, -1)

    model = Model(difference)
    with torch.no_grad(), capture(model) as captured:
        model(IDS)
        x = model.embed(IDS)
        x = x + model.blocks[0](x)
        q, k, _ = (part[:, :heads] for part in model.blocks[1].parts(x))  # type: ignore[operator,union-attr]
    assert captured.stacks == ("self", "self.2")
    for trace in captured["self.2"]:
        weights = (k @ q.mT * WIDTH**-0.5).softmax(-1)[trace.row]
        np.testing.assert_allclose(trace[1].weights[...], weights, atol=1e-6)


def test_queries_that_are_some_of_the_tokens_are_not_taken_for_the_last() -> None:
    def first_only(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q[:, :, :1], k, v)

    model = Looped(Attention(first_only), lambda inner, x: inner(x))
    captured = captured_of(model, IDS)
    for trace in captured.traces:
        assert (len(trace.queries), trace.keys.ids) == (1, tuple(IDS[trace.row].tolist()))
        assert trace.keys is not trace.queries


def test_no_batch_at_all() -> None:
    """(heads, tokens, width): the first axis is that of the heads, which the output projection proves."""
    block = Attention(lambda q, k, v: sdpa(q[0], k[0], v[0])[None])
    model = Looped(block, lambda inner, x: inner(x))
    with torch.no_grad(), capture(model) as captured:
        model(IDS[1:2])
        weights = expected(block, model.embed(IDS[1:2]), FULL)[0]
    np.testing.assert_allclose(captured.trace[0].weights[...], weights, atol=1e-6)
    assert captured.trace.ids == tuple(IDS[1].tolist())


def test_heads_of_parts_are_silenced() -> None:
    model = Model(in_chunks(5))
    with torch.no_grad(), ablate(model, [(1, 2)]), capture(model) as captured:
        watched = model(IDS)
    for at in (1, 2):
        model.blocks[at].attend = sdpa
    with torch.no_grad(), ablate(model, [(1, 2)]):
        torch.testing.assert_close(watched, model(IDS))
    assert all(trace.ablated == {(1, 2)} for trace in captured.traces)
    assert all(trace.verify().agrees for trace in captured.traces)


def test_heads_are_silenced_in_every_row() -> None:
    model = Model(NOT_JOINED["rows"][0])
    with torch.no_grad(), ablate(model, [(1, 2)]):
        found = model(IDS)
    for at in (1, 2):
        model.blocks[at].attend = partial(sdpa, is_causal=True)
    with torch.no_grad(), ablate(model, [(1, 2)]):
        torch.testing.assert_close(found, model(IDS))


@pytest.mark.parametrize(
    ("attend", "head", "how"),
    [
        (NOT_JOINED["heads"][0], 0, "zero"),
        (NOT_JOINED["rows without a batch"][0], 0, "zero"),
        (in_chunks(4), 2, "mean"),
    ],
)
def test_heads_that_a_part_does_not_show_are_not_silenced(attend: Attend, head: int, how: str) -> None:
    model = Model(attend)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="attends in parts"), ablate(model, {(1, head): how}):
        model(IDS)


def test_a_head_that_no_call_has_is_not_silenced() -> None:
    model = Model(NOT_JOINED["heads"][0])
    with torch.no_grad(), pytest.raises(InputError, match="there is no head 2"), ablate(model, [(1, 2)]):
        model(IDS)


VISION = {"depth": 2, "embed_dim": 32, "num_heads": 4, "hidden_size": 32, "patch_size": 4, "in_channels": 3}


@pytest.mark.parametrize("sizes", [((4, 4), (2, 4), (4, 2)), ((4, 4), (4, 4))])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_several_images_in_one_sequence(implementation: str, sizes: tuple[tuple[int, int], ...]) -> None:
    """Qwen2-VL calls its attention once for each image, and has one sequence of the patches of all."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel as Vision

    torch.manual_seed(0)
    model = Vision(Qwen2VLVisionConfig(**VISION, attn_implementation=implementation)).eval()
    grid = torch.tensor([(1, *size) for size in sizes])
    ends = grid.prod(1).cumsum(0).tolist()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    table, key = transformers.AttentionInterface._global_mapping, "sdpa"
    with torch.no_grad():
        captured = captured_of(model, torch.randn(32, 96, generator=torch.Generator().manual_seed(2)), grid)
        original = table[key]
        try:
            table[key] = lambda module, q, k, *rest, **named: (
                seen.append((q, k)),
                original(module, q, k, *rest, **named),
            )[1]
            model.set_attn_implementation("sdpa")
            model(torch.randn(32, 96, generator=torch.Generator().manual_seed(2)), grid)
        finally:
            table[key] = original
            model.set_attn_implementation(implementation)
    trace = captured.trace
    assert (captured.stacks, len(trace.queries), trace.numbers) == (("self",), 32, (0, 1))
    for layer in range(2):
        weights = torch.zeros(4, 32, 32)
        for (start, stop), (q, k) in zip(pairwise([0, *ends]), seen[len(sizes) * layer :], strict=False):
            weights[:, start:stop, start:stop] = (q[0] @ k[0].mT * WIDTH**-0.5).softmax(-1)
        np.testing.assert_allclose(trace[layer].weights[...], weights, atol=1e-5)
    assert trace.verify().agrees
