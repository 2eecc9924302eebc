"""A trace in a cell of Jupyter or marimo: a widget, or without anywidget the page in an isolated frame."""

from __future__ import annotations

import html
import sys
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.errors import InputError
from headscope.page.html import default_title, notes_of, page
from headscope.page.trace import estimated_bytes, page_bytes
from headscope.progress_bar import in_notebook
from headscope.settings import whole
from headscope.traces import Trace

if TYPE_CHECKING:
    from headscope.atlas.head_notes import HeadNotes
    from headscope.page.widget import TraceWidget

HEIGHT = 720
SHOWN_UP_TO = 24 << 20
"""Most bytes of a trace that a cell shows without being told to: they are saved with the notebook."""


def frame(trace: Trace | Sequence[Trace], *, height: int = HEIGHT, atlas: HeadNotes | None = None) -> str:
    """An iframe with the whole page inside, which may run its scripts but not access the notebook.

    Args:
        trace: one trace, or several to compare.
        height: of the frame, in pixels.
        atlas: stands beside the trace; without links, which lead out of no frame.
    """
    traces = [trace] if isinstance(trace, Trace) else list(trace)
    content = page(
        [page_bytes(member) for member in traces],
        home="notebook",
        title=default_title(traces[0]),
        atlas=None if atlas is None else atlas.data(None),
    )
    source = html.escape(content.decode(), quote=True).replace("\n", "&#10;")  # Markdown ends markup at an empty line
    return (
        f'<iframe title="{html.escape(default_title(traces[0]), quote=True)}" '
        'sandbox="allow-scripts allow-downloads" allow="clipboard-write" loading="lazy" '
        f'style="width:100%;height:{height}px;border:0" '
        f'srcdoc="{source}"></iframe>'
    )


def mimebundle(
    trace: Trace, include: Collection[str] | None = None, exclude: Collection[str] | None = None
) -> dict[str, str]:
    """A trace as the last line of a notebook's cell: the page, or only text if there is none, or a large one.

    Args:
        trace: the trace.
        include: the MIME types to return, as IPython passes them; by default, all.
        exclude: MIME types to leave out.
    """
    bundle = {"text/plain": repr(trace)}
    if "text/html" not in (include or {"text/html"}) or "text/html" in (exclude or ()):
        return bundle  # the page is made only if it will be shown
    size = estimated_bytes(trace)
    if size <= SHOWN_UP_TO:
        try:
            bundle["text/html"] = frame(trace)
        except InputError as error:
            bundle["text/plain"] += f"\nit has no page as a whole: {error.found}; {error.advice}"
    else:
        bundle["text/plain"] += (
            f"\nits page would take {size * 4 / 3 / 1e6:,.0f} MB of the notebook: "
            "trace.view() serves it, trace.to_html(…, layers=[…]) writes a part"
        )
    return bundle


def in_marimo() -> bool:
    """Return True in a cell of a marimo notebook."""
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())


def show(
    trace: Trace, *, height: int | None = None, open_browser: bool = True, atlas: str | Path | None = None
) -> TraceWidget | None:
    """Return the page as a widget in a notebook with anywidget, show it in one without, or serve it until Ctrl-C."""
    beside, height = notes_of(atlas, trace), HEIGHT if height is None else whole(height, "height", 1)
    if (in_notebook() or in_marimo()) and find_spec("anywidget") is not None:
        from headscope.page.widget import TraceWidget

        return TraceWidget(trace, height=height, atlas=beside)
    if in_notebook():
        from IPython.display import display

        display({"text/plain": repr(trace), "text/html": frame(trace, height=height, atlas=beside)}, raw=True)
    elif in_marimo():
        marimo = sys.modules["marimo"]
        marimo.output.append(marimo.Html(frame(trace, height=height, atlas=beside)))
    else:
        from headscope.page.server import serve

        serve(trace, open_browser=open_browser, atlas=beside)
    return None
