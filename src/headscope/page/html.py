"""One or several traces as one offline HTML file: the built page with the trace files embedded."""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.checkpoint import model_name
from headscope.errors import CheckpointError, HeadscopeWarning, InputError, TraceError, UnsupportedError
from headscope.files import write_atomically
from headscope.heads.catalog import CATALOG, ON_PAGE
from headscope.page.runs import Labels, cost_of_groups, is_cheap, runs_of
from headscope.page.trace import estimated_bytes, page_file, with_masks
from headscope.pages import filled, inert_element, json_element, words
from headscope.screens.pieces import joined
from headscope.traces import Trace

if TYPE_CHECKING:
    from headscope.atlas.head_notes import HeadNotes

LARGE = 64 << 20
"""Bytes of a page above which a note says, before it is written, how to make it smaller."""
CHUNK = 24 << 20
"""Bytes of a trace per element of the page, a multiple of 3: browsers can't hold a text of a gigabyte."""


class LargePageWarning(HeadscopeWarning):
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
    runs: bool | None = None,
    atlas: str | Path | None = None,
) -> Path:
    """Write the page with these traces embedded: `trace` is one, or several to compare.

    Options, result and errors are those of `Trace.to_html`; `atlas` is of the first trace's model.
    """
    content, _ = offline_page(
        trace,
        dtype=dtype,
        values=values,
        layers=layers,
        heads=heads,
        title=title,
        runs=runs,
        notify=lambda note: warnings.warn(LargePageWarning(note), stacklevel=4),
        atlas=notes_of(atlas, trace),
        folder=Path(path).parent,
    )
    write_atomically(Path(path), content)
    return Path(path)


def offline_page(
    trace: Trace | Sequence[Trace],
    *,
    notify: Callable[[str], None],
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str | None = None,
    runs: bool | None = None,
    state: str = "",
    progress: Callable[[int, int], None] | None = None,
    atlas: HeadNotes | None = None,
    folder: Path | None = None,
) -> tuple[bytes, str]:
    """Make the page that `to_html` writes.

    Args:
        notify: called with a note if the page will be large, before it is made.
        state: what the page shows first, as the part of its address after `#`, which wins where there is one.
        progress: called with the layers done and all layers while heads are silenced.
        atlas: stands beside the first trace.
        folder: of the file, from which links to the atlas lead; None if it isn't known.

    Returns:
        The file's content, and a line that describes it.
    """
    traces = [trace] if isinstance(trace, Trace) else list(trace)
    if not traces:
        raise InputError("the list of traces is empty", where="to_html", advice="pass a trace, or a list of traces")
    chosen = {name: some for name, some in (("layers", layers), ("heads", heads)) if some is not None}
    lists = {name: list(some) if isinstance(some, Iterable) else [some] for name, some in chosen.items()}
    narrow: dict[str, Any] = {"dtype": dtype, "values": values, **lists}
    note = size_note(traces, **narrow)
    if note is not None:
        notify(note)
    files = [page_file(member, **narrow, masks=with_masks(member, runs)) for member in traces]
    records, failure = [], None
    try:
        for at, member in enumerate(traces):
            labels = [] if atlas is None or at else atlas.groups()
            records += _runs(member, str(at), labels, include=runs, progress=progress)
    except (UnsupportedError, CheckpointError, TraceError) as error:
        if runs:
            raise
        failure = error.found
    content = page(
        [file for file, _ in files],
        home="file",
        title=title or default_title(traces[0]),
        remote=[str(at) for at in range(len(traces))],
        runs=records,
        state=state,
        atlas=None if atlas is None else atlas.data(atlas.site_from(folder)),
    )
    line = f"the page of {len(traces[0])} tokens, {len(content) / 1e6:,.1f} MB"
    if state:
        line += f"; opens at #{state}"
    if any(left_out for _, left_out in files):
        line += "; without V, to keep it small: --set values=true includes it (for the sixth step of a cell)"
    if records:
        count = sum(len(row) for row in records[0]["result"]["change"])
        line += f"; with the effect of silencing each of its {count} heads (--set runs=false leaves it out)"
    elif failure is not None:
        line += f"; without the effects of its heads: {failure}"
    return content, line


def notes_of(
    folder: str | Path | None, trace: Trace | Sequence[Trace], notify: Callable[[str], None] | None = None
) -> HeadNotes | None:
    """The survey in a folder, to stand beside the first trace; None without one. Notify, or warn, if it's another's."""
    first = trace if isinstance(trace, Trace) else next(iter(trace), None)
    if folder is None or first is None:
        return None
    from headscope.atlas.head_notes import OtherModelWarning, head_notes

    atlas = head_notes(folder, first)
    if atlas.notice is not None:
        notify(atlas.notice) if notify else warnings.warn(OtherModelWarning(atlas.notice), stacklevel=4)
    return atlas


def _runs(
    trace: Trace, base: str, labels: Labels, *, include: bool | None, progress: Callable[[int, int], None] | None
) -> list[dict[str, Any]]:
    """The runs of a trace that a page holds.

    Raises:
        InputError: they were asked for, and the trace has no model to run.
        UnsupportedError: the model lacks an output that could be read.
        CheckpointError: its output is not a number.
        TraceError: the trace lacks layers or heads.
    """
    from headscope.model import Model

    model = trace.source
    if include is False or (include is None and not isinstance(model, Model)):
        return []
    if not isinstance(model, Model):
        raise InputError(
            "the effects of silencing heads need the model, and this trace has none that headscope can run",
            where="runs",
            advice="make the trace with hs.open(…).trace(…), or leave out runs=True (--set runs=true)",
        )
    if not (include or is_cheap(model, trace)):
        return []
    return runs_of(model, trace, base, labels if include or is_cheap(model, trace, cost_of_groups) else None, progress)


def size_note(traces: Sequence[Trace], **narrow: Any) -> str | None:
    """A note about the size of a large page and how to make it smaller; None if it is not large."""
    expected = sum(estimated_bytes(trace, **narrow) for trace in traces)
    if expected * 4 // 3 <= LARGE:
        return None
    return (
        f"the page will take about {expected * 4 / 3 / 1e6:,.0f} MB; "
        "to make it smaller, choose layers=[…] or heads=[…] (--heads)"
    )


def page(files: Sequence[bytes], *, home: str, title: str, elements: Sequence[bytes] = (), **about: Any) -> bytes:
    """The page's bytes, with trace files embedded.

    With a field `model` it is the page that runs what is typed.

    Args:
        files: trace files, as made by `page_bytes`.
        home: file, server or notebook, which decides what the page can do.
        title: of the page.
        elements: further elements that hold data.
        about: further fields of the page's `hs-about` element.
    """
    statistics = [CATALOG[name].record() for name in ON_PAGE]
    start = {"home": home, "traces": len(files), "bytes": list(map(len, files)), "statistics": statistics, **about}
    if start.get("atlas") is None:
        start.pop("atlas", None)
    parts = [words(), json_element("hs-about", start)]
    for index, file in enumerate(files):
        view = memoryview(file)
        for number, at in enumerate(range(0, len(file), CHUNK)):
            name = f"hs-trace-{index}" + (f"-{number}" if number else "")
            parts.append(inert_element(name, b64encode(view[at : at + CHUNK])))
    return filled("typed" if "model" in about else "page", title=title, elements=[*parts, *elements])


def default_title(trace: Trace) -> str:
    """The beginning of the text and the model's name."""
    begins = " ".join((trace.text or joined(trace.queries, 8)).split())
    return f"{begins[:48]}{'…' if len(begins) > 48 else ''} · {model_name(trace.model)} · headscope"
