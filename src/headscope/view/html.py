"""One trace, or several, as one offline HTML file: the built page with the trace file inside it."""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headscope._trace import Trace
from headscope.errors import InputError
from headscope.pages import filled, json_element
from headscope.statistics.catalog import CATALOG, WEIGHTS_ONLY
from headscope.view.page_trace import estimated_bytes, model_name, page_file
from headscope.writing import write_atomically

LARGE = 64 << 20
"""A page above this size says so, and how to make it smaller, before it is written."""
PIECE = 24 << 20
"""Bytes of a trace in one element of the page, a multiple of 3: browsers hold no text of a gigabyte."""


class LargePageWarning(UserWarning):
    """The page will be large."""


def to_html(
    trace: Trace | Sequence[Trace],
    path: str | Path,
    *,
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str | None = None,
) -> Path:
    """Write the page with these traces inside: one file that needs no network and no other file.

    Args:
        trace: one trace, or several to compare.
        dtype: precision of Q, K and V: fp16, or fp32 at twice the size.
        values: whether V goes in, for the whole chain of a cell; None for short texts only.
        layers: only these, counted from 0.
        heads: only these of each layer.
        title: the page's title; the model's name and the text's beginning unless given.

    Raises:
        InputError: no trace, no such layer, head or dtype, or a file that can't be written.
    """
    written, _ = write_page(
        trace,
        path,
        dtype=dtype,
        values=values,
        layers=layers,
        heads=heads,
        title=title,
        said=lambda note: warnings.warn(LargePageWarning(note), stacklevel=4),
    )
    return written


def write_page(
    trace: Trace | Sequence[Trace],
    path: str | Path,
    *,
    said: Callable[[str], None],
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str | None = None,
) -> tuple[Path, str]:
    """As to_html; what there is to say of the size goes to `said` before the file is written, and a line comes back."""
    path = Path(path)
    traces = [trace] if isinstance(trace, Trace) else list(trace)
    if not traces:
        raise InputError("there is no trace to show", where="to_html", advice="pass a trace, or a list of some")
    note = size_note(traces, dtype=dtype, values=values, layers=layers, heads=heads)
    if note is not None:
        said(note)
    made = [page_file(one, dtype=dtype, values=values, layers=layers, heads=heads) for one in traces]
    whole = page([content for content, _ in made], home="file", title=title or default_title(traces[0]))
    write_atomically(path, whole)
    line = f"the page of {len(traces[0])} tokens, {len(whole) / 1e6:,.1f} MB, open it in a browser"
    if any(left_out for _, left_out in made):
        line += "; without V, to keep it small: --values puts it in (a cell's sixth step shows it)"
    return path, line


def size_note(
    traces: Sequence[Trace],
    *,
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> str | None:
    """A sentence about the size of the page, and how to make it smaller; None where it is not large."""
    expected = sum(
        estimated_bytes(
            one,
            dtype,
            values,
            len(one.layers) if layers is None else len(layers),
            one.heads if heads is None else len(heads),
        )
        for one in traces
    )
    if expected * 4 // 3 <= LARGE:
        return None
    return (
        f"the page will take about {expected * 4 / 3 / 1e6:,.0f} MB; "
        "narrow it with layers=[…] or heads=[…] (--layers, --heads) where that is too much"
    )


def page(held: Sequence[bytes], *, home: str, title: str, **about: Any) -> bytes:
    """The page's bytes, with trace files inside.

    Args:
        held: trace files, as page_bytes makes them.
        home: file, server or notebook: what the page may ask for.
        about: what else the page is told at its start.
    """
    statistics = [CATALOG[name].record() for name in WEIGHTS_ONLY]
    start = {"home": home, "traces": len(held), "bytes": [len(one) for one in held], "statistics": statistics, **about}
    parts = [json_element("hs-about", start)]
    for index, one in enumerate(held):
        whole = memoryview(one)
        for number, at in enumerate(range(0, len(one), PIECE)):
            name = f"hs-trace-{index}" + (f"-{number}" if number else "")
            parts += [
                f'<script type="application/octet-stream" id="{name}">'.encode(),
                b64encode(whole[at : at + PIECE]),
                b"</script>\n",
            ]
    return filled("page", title=title, elements=parts)


def default_title(trace: Trace) -> str:
    """The model's name and how the text begins."""
    begins = " ".join((trace.text or " ".join(trace.tokens[:8])).split())
    return f"{begins[:48]}{'…' if len(begins) > 48 else ''} · {model_name(trace.model)} · headscope"
