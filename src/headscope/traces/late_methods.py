"""The methods of a trace whose implementation stands in another part, imported when they are called."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.late import late

if TYPE_CHECKING:
    from headscope.results.arrays import Named
    from headscope.results.explained import Finding, Followed, MixingRatio
    from headscope.results.head_values import HeadDistances
    from headscope.results.lazy_maps import LazyMap
    from headscope.results.table import HeadTable
    from headscope.results.verify_report import Report


class Questions:
    """Measures, explanations and pictures of a trace, and its file: each is a function further down the package."""

    @late("headscope.traces.file:save")
    def save(self, path: str | Path, *, dtype: str = "fp32", values: bool = True) -> Path:
        """Write the trace to one safetensors file, atomically. The format is described in docs/trace-format.md.

        Args:
            path: the file.
            dtype: precision of Q, K and V: "fp32", or "fp16" for half the size.
            values: True to save V.

        Returns:
            The file's path.

        Raises:
            InputError: `dtype` is neither "fp32" nor "fp16", fp16 is too narrow for the numbers, the folder doesn't
                exist, or the trace is too long.
        """

    @late("headscope.verify:verify")
    def verify(self, *, reference: bool = True, against: Any = ...) -> Report:
        """Recompute this trace in independent ways and compare. See headscope.verify.

        Args:
            reference: True to also run the model's eager attention, or transformers if it is installed, whose import
                takes seconds.
            against: weights to compare with instead: the `attentions` that a transformers model returned, or an array
                of (layers, heads, queries, keys), never None, which is what it returns unasked. See
                headscope.verify.against.

        Returns:
            A report with the worst difference of each comparison, its place and its tolerance.

        Raises:
            InputError: `against` is not a set of weights, or its size differs from the trace's.
        """

    @late("headscope.heads.measure:statistics")
    def statistics(
        self,
        names: str | Iterable[str] | None = None,
        *,
        per_query: bool = False,
        special: bool = True,
        engine: str = "numpy",
    ) -> HeadTable:
        """Statistics of where every head looks: name -> (layers, heads). Listed in docs/statistics.md.

        Args:
            names: the statistics; by default, all that the trace supports.
            per_query: True for (layers, heads, queries) instead of the mean over queries.
            special: include queries that the tokenizer added. As keys they are always included; padding never is.
            engine: `numpy` computes the weights in blocks of queries, in fp64; `torch` computes the same without
                building them, which is faster on long texts.

        Returns:
            A table of statistics. Each has a unit, listed in docs/statistics.md.

        Raises:
            InputError: there is no such statistic or engine.
            TraceError: norm-weighted statistics were requested by name, and the trace has no values or no model.
            UnsupportedError: the same, and the place of W_O in this live model is unknown.
            MissingExtraError: engine="torch" without PyTorch.
        """

    @late("headscope.heads.head_distances:head_distances")
    def head_distances(self, *, special: bool = True) -> HeadDistances:
        """(heads_total, heads_total): Jensen-Shannon distance between heads. See headscope.heads.head_distances.

        Args:
            special: True to include queries that the tokenizer added.
        """

    @late("headscope.explain.mixing:mixing_ratio")
    def mixing_ratio(self, kind: str = "AttnResLn-N") -> MixingRatio:
        """(layers, queries): the share of each token's new vector that comes from other tokens.

        See headscope.explain.mixing.

        Args:
            kind: the quantity that is measured: Attn-W, Attn-N, AttnRes-W, AttnRes-N or AttnResLn-N.
        """

    @late("headscope.explain.taken_in:follow")
    def follow(self, token: int) -> Followed:
        """The shares of one token's new vector that every other token brings, layer by layer and head by head.

        See headscope.explain.taken_in.

        Args:
            token: its position.
        """

    @late("headscope.explain.mixing:norm_map")
    def norm_map(self, layer: int, kind: str = "Attn-N", head: int | None = None) -> LazyMap:
        """(queries, keys), lazy: norms of the vectors that tokens contribute to each other in a layer or a head.

        See headscope.explain.mixing.

        Args:
            layer: the layer's number.
            kind: the quantity that is measured: Attn-N, AttnRes-N or AttnResLn-N; those with Res of self-attention.
            head: the number of one head, whose kind is Attn-N, for the residual belongs to no head; by default, the
                whole layer.
        """

    @late("headscope.explain.mixing:rollout")
    def rollout(self, *, to: int | None = None, from_: int | None = None, kind: str = "AttnRes-W") -> Named:
        """(tokens,): the flow from every input token to one output token, or from one input token to every output.

        See headscope.explain.mixing.

        Args:
            to: position of the output token.
            from_: position of the input token, instead of `to`.
            kind: as for `mixing_ratio`. Kinds without Res leave the residual out. The weights of silenced heads don't
                count.
        """

    @late("headscope.explain.mixing:value_zeroing")
    def value_zeroing(self, layer: int, query: int) -> Named:
        """(keys,): change of direction of a token's vector in one layer if another token's value is set to zero.

        See headscope.explain.mixing.

        Args:
            layer: the layer's number.
            query: position of the token whose vector is looked at.
        """

    @late("headscope.screens.figures:plot_trace")
    def plot(
        self,
        layer: int,
        head: int | None = None,
        *,
        ax: Any = None,
        width: float = 3.35,
        save: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Draw the weights of one head, or of all heads of a layer, with matplotlib.

        Returns the axes, or an array of them. See headscope.screens.figures.
        """

    @late("headscope.explain.findings:findings")
    def findings(self, *, layers: Sequence[int] | None = None, most: int | None = 5) -> tuple[Finding, ...]:
        """Notable properties of this trace, each a sentence with its numbers and cells, the most telling first.

        See headscope.explain.findings.

        Args:
            layers: numbers of the layers to examine; all by default.
            most: how many at most; None for all.
        """

    @late("headscope.page.html:to_html")
    def to_html(
        self,
        path: str | Path,
        *,
        dtype: str = "fp16",
        values: bool | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        title: str | None = None,
        runs: bool | None = None,
        atlas: str | Path | None = None,
    ) -> Path:
        """Write an interactive page of this trace: one HTML file that needs no network and no other file.

        Args:
            path: the file.
            dtype: of Q, K and V in it: "fp16", or "fp32" at twice the size. Arrays with numbers beyond 65,504, the
                largest of fp16, are in fp32.
            values: True to include V, for all steps of a cell, and as much again to follow a word through the layers;
                by default, only for short texts.
            layers: numbers of the layers to include; all by default.
            heads: numbers of the heads to include in each layer; all by default.
            title: the page's title; by default the model's name and the beginning of the text.
            runs: True to include the effects of silencing each head in turn and groups of heads, an attribution, and
                how masking each word turns the one that the page opens on, which need the trace's model; by default,
                those that take about a second.
            atlas: the folder of a survey of this model, whose words about each head stand beside its numbers.

        Returns:
            The file's path.

        Raises:
            InputError: no such layer, head or dtype, a file that can't be written, or a survey of a model with other
                heads or sizes.
        """

    @late("headscope.page.notebook:show")
    def view(self, *, height: int | None = None, open_browser: bool = True, atlas: str | Path | None = None) -> Any:
        """Show the interactive page: inline in a notebook, otherwise from a local server that runs until Ctrl-C.

        Args:
            height: height of the frame in a notebook, in pixels.
            open_browser: True to open the served page in a browser.
            atlas: the folder of a survey of this model, which says what each head does over a corpus.

        Returns:
            In a notebook with the extra `notebook` (anywidget), a widget, which the notebook shows as
            the last line of a cell: `w.selection` is (layer, head, query, key), to read, set and observe. Elsewhere
            None.
        """

    @late("headscope.page.notebook:mimebundle")
    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """The trace as a notebook shows it."""
