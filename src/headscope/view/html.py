"""One or several traces as one offline HTML file: the built page with the trace files embedded."""

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
from headscope.view.pieces import joined
from headscope.writing import write_atomically

LARGE = 64 << 20
"""Bytes of a page above which a note says, before it is written, how to make it smaller."""
CHUNK = 24 << 20
"""Bytes of a trace per element of the page, a multiple of 3: browsers can't hold a text of a gigabyte."""


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
    """Write the page with these traces embedded: one file that needs no network and no other file.

    Args:
        trace: one trace, or several to compare.
        path: of the file to write.
        dtype: of Q, K and V: fp16, or fp32 at twice the size.
        values: include V, which the page needs to show all steps of a cell; None includes it for short texts only.
        layers: only these, counted from 0.
        heads: only these of each layer.
        title: the page's title; by default the model's name and the beginning of the text.

    Returns:
        The path.

    Raises:
        InputError: no trace, no such layer, head or dtype, or a file that can't be written.
    """
    page_path, _ = write_page(
        trace,
        path,
        dtype=dtype,
        values=values,
        layers=layers,
        heads=heads,
        title=title,
        notify=lambda note: warnings.warn(LargePageWarning(note), stacklevel=4),
    )
    return page_path


def write_page(
    trace: Trace | Sequence[Trace],
    path: str | Path,
    *,
    notify: Callable[[str], None],
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str | None = None,
) -> tuple[Path, str]:
    """Write the page as `to_html` does.

    Args:
        notify: called with a note if the page will be large, before it is written.

    Returns:
        The path, and a line that describes the page.
    """
    path = Path(path)
    traces = [trace] if isinstance(trace, Trace) else list(trace)
    if not traces:
        raise InputError("the list of traces is empty", where="to_html", advice="pass a trace, or a list of traces")
    note = size_note(traces, dtype=dtype, values=values, layers=layers, heads=heads)
    if note is not None:
        notify(note)
    files = [page_file(member, dtype=dtype, values=values, layers=layers, heads=heads) for member in traces]
    content = page([file for file, _ in files], home="file", title=title or default_title(traces[0]))
    write_atomically(path, content)
    line = f"the page of {len(traces[0])} tokens, {len(content) / 1e6:,.1f} MB, open it in a browser"
    if any(left_out for _, left_out in files):
        line += "; without V, to keep it small: --values includes it (for the sixth step of a cell)"
    return path, line


def size_note(
    traces: Sequence[Trace],
    *,
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> str | None:
    """A note about the size of a large page and how to make it smaller; None if it is not large."""
    expected = sum(
        estimated_bytes(
            trace,
            dtype,
            values,
            len(trace.layers) if layers is None else len(layers),
            trace.heads if heads is None else len(heads),
        )
        for trace in traces
    )
    if expected * 4 // 3 <= LARGE:
        return None
    return (
        f"the page will take about {expected * 4 / 3 / 1e6:,.0f} MB; "
        "to make it smaller, choose layers=[…] or heads=[…] (--layers, --heads)"
    )


def page(files: Sequence[bytes], *, home: str, title: str, **about: Any) -> bytes:
    """The page's bytes, with trace files embedded.

    Args:
        files: trace files, as made by `page_bytes`.
        home: file, server or notebook, which decides what the page can do.
        title: of the page.
        about: further fields of the page's `hs-about` element.
    """
    statistics = [CATALOG[name].record() for name in WEIGHTS_ONLY]
    start = {"home": home, "traces": len(files), "bytes": list(map(len, files)), "statistics": statistics, **about}
    parts = [json_element("hs-about", start)]
    for index, file in enumerate(files):
        view = memoryview(file)
        for number, at in enumerate(range(0, len(file), CHUNK)):
            name = f"hs-trace-{index}" + (f"-{number}" if number else "")
            parts += [
                f'<script type="application/octet-stream" id="{name}">'.encode(),
                b64encode(view[at : at + CHUNK]),
                b"</script>\n",
            ]
    return filled("page", title=title, elements=parts)


def default_title(trace: Trace) -> str:
    """The beginning of the text and the model's name."""
    begins = " ".join((trace.text or joined(trace.queries, 8)).split())
    return f"{begins[:48]}{'…' if len(begins) > 48 else ''} · {model_name(trace.model)} · headscope"
