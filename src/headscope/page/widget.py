"""The page as a widget of Jupyter, marimo, VS Code and Colab, whose selection Python reads, sets and observes.

The front end puts the page into the same isolated frame that a cell without it shows. Only the page's state and
four numbers leave the frame; a trace too large for the notebook stays here, and the page requests parts of it.
"""

from __future__ import annotations

import json
import operator
from importlib.resources import files
from typing import TYPE_CHECKING, Any, SupportsIndex

import anywidget
import traitlets

from headscope.errors import HeadscopeError, InputError
from headscope.page.html import default_title, page
from headscope.page.questions import in_the_page
from headscope.page.trace import estimated_bytes, page_bytes
from headscope.page.trace_parts import header_bytes, is_large, part
from headscope.traces import Trace

if TYPE_CHECKING:
    from headscope.atlas.head_notes import HeadNotes

EMBEDDED_UP_TO = 24 << 20
"""Most bytes of a trace that are saved with the notebook; of a larger one, the kernel sends what is looked at."""

REMOTE = "0"
"""The trace's name in the page's requests."""

Selection = tuple[int, int, int | None, int | None]
"""Layer, head, query and key, as the model numbers them; None for a query or key that isn't pinned."""


class TraceWidget(anywidget.AnyWidget):
    """The page of a trace.

        w = trace.view()
        w.selection = (3, 1, 7, 2)                       # layer, head, query, key
        w.observe(print, names="selection")              # called when somebody selects something else

    Attributes:
        selection: layer and head, by their numbers in the model, and the pinned query and key, or None. It can be
            set and observed.
        state: everything else that the page shows, as text of the page's own: it can be kept and set again.
        height: of the page, in pixels.
    """

    _esm = (files("headscope") / "page" / "static" / "widget.js").read_text(encoding="utf-8")
    _page = traitlets.Unicode().tag(sync=True)
    _title = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(720).tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    selection = traitlets.Tuple().tag(sync=True)

    def __init__(self, trace: Trace, *, height: int, atlas: HeadNotes | None = None) -> None:
        self._trace = trace
        content, title = _file_of(trace), default_title(trace)
        super().__init__(
            _page=page(
                [content],
                home="notebook",
                title=title,
                remote=[REMOTE],
                atlas=None if atlas is None else atlas.data(None),
            ).decode(),
            _title=title,
            height=height,
            selection=_opening(trace, content),
        )
        self.on_msg(self._answer)

    def __repr__(self) -> str:
        return f"widget: {self._trace!r}"

    @traitlets.validate("selection")
    def _checked(self, proposal: Any) -> Selection:
        """Return the selection, if the trace has it.

        Raises:
            InputError: it is not four numbers, or the trace has no such layer, head, query or key.
        """
        value = tuple(proposal["value"])
        given = [item for item in value if item is not None]
        whole = all(isinstance(item, SupportsIndex) and not isinstance(item, bool) for item in given)
        if len(value) != 4 or not whole or None in value[:2]:
            raise InputError(
                f"{value!r} is not a selection",
                where="selection",
                advice="set (layer, head, query, key); query and key may be None",
            )
        layer, head = map(operator.index, value[:2])
        query, key = (None if item is None else operator.index(item) for item in value[2:])
        sizes = {"query": (query, len(self._trace.queries)), "key": (key, len(self._trace.keys))}
        found = self._trace[layer, head]  # raises InputError for a layer or head that the trace lacks
        for name, (place, size) in sizes.items():
            if place is not None and not 0 <= place < size:
                raise InputError(
                    f"there is no {name} {place}", where="selection", advice=f"tokens run from 0 to {size - 1}"
                )
        return found.layer, found.head, query, key

    def _answer(self, _: Any, content: Any, buffers: Any) -> None:
        """Send a part of a trace to the page that requested it."""
        number, request = content.get("id"), content.get("request")
        try:
            at = request.get("trace") if isinstance(request, dict) else None
            if at != REMOTE:
                raise InputError(f"there is no trace {at!r}", where="trace", advice="run the cell again")
            self.send({"id": number}, buffers=[part(self._trace, request)])
        except HeadscopeError as error:
            self.send({"id": number, "error": in_the_page(error)})


def _file_of(trace: Trace) -> bytes:
    large = is_large(trace) or estimated_bytes(trace) > EMBEDDED_UP_TO
    return header_bytes(trace) if large else page_bytes(trace)


def _opening(trace: Trace, content: bytes) -> Selection:
    """The cell that a fresh page has pinned, or the first head."""
    length = int.from_bytes(content[:8], "little")
    view = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["headscope.view"])
    cell = view["opening"]
    if cell is None:
        layer = trace.numbers[0]
        return layer, trace.head_numbers(layer)[0], None, None
    return cell["layer"], cell["head"], cell["query"], cell["key"]
