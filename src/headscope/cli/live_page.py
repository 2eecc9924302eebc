"""The command that puts a model into a page."""

from __future__ import annotations

from typing import Annotated

import typer

from headscope.cli.app import app, opened, tell, tell_saved
from headscope.cli.one_text import RUN, open_file
from headscope.cli.options import Html, takes_options
from headscope.cli.request import as_typed
from headscope.files import write_atomically


@app.command(rich_help_panel=RUN)
@takes_options
def live(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", show_default=False, help="As in the other commands.")
    ] = "-",
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", show_default=False, help="What it opens on.")] = None,
    html: Html = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Don't open the page in a browser.")] = False,
) -> None:
    """Put a model into a page that answers on whatever is typed: one offline file, no server.

    Without MODEL it is the bundled one; other models are of BERT's form, up to 60 MB in half precision.

    Without --html, a temporary file is written and opened.
    """
    from headscope.page.typed import typed_page

    content, note = typed_page(opened(model), None if text is None else as_typed(text))
    if html is None:
        open_file(content, note, opens=not no_browser)
    else:
        write_atomically(html, content)
        tell_saved(html, note)
        tell(f"next: open {html} in a browser, and type")
