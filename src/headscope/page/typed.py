"""The page with a model in it, as one offline file: it answers on whatever is typed, without a server or a network."""

from __future__ import annotations

import warnings
from base64 import b64encode
from typing import TYPE_CHECKING

from headscope.errors import InputError, NoteWarning
from headscope.page.html import CHUNK, page
from headscope.page.packed import packed
from headscope.page.trace import model_name
from headscope.pages import inert_element, script
from headscope.runs.texts import as_input, as_traced

if TYPE_CHECKING:
    from headscope.model import Model

EXAMPLES = (
    "She said to [MASK] father that she was ill.",
    "The horse ran away because [MASK] was afraid.",
    "The boys went to school because [MASK] had to learn.",
)
"""Sentences in which silencing one head of the bundled model changes the guess."""
PLAIN = "The animal didn't cross the street because it was too tired."


def typed_page(model: Model, text: str | None = None) -> tuple[bytes, str]:
    """Make the page of a model.

    Args:
        model: of BERT's form; headscope.page.packed says what the page runs.
        text: what it opens on; by default a sentence with a mask for the bundled model, another one otherwise.

    Returns:
        The file's content, and a line that describes it.

    Raises:
        InputError: the text is empty, or longer than the model's window or its own limit.
        UnsupportedError: the page can't run the model.
        CheckpointError: a weight is not a number, or beyond half precision.
    """
    bundled = model.name == "-"
    first = text if text is not None else EXAMPLES[0] if bundled else PLAIN
    if not first.strip():
        raise InputError("the text is empty", where="TEXT", advice="type some words, or leave it out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoteWarning)  # a text that would be cut is refused
        read = as_traced(model, first)
    if read.whole > len(read.encoded):
        raise InputError(
            f"the text has {read.whole} tokens, the model takes {len(read.encoded)} at most",
            where="TEXT",
            advice="shorten it",
        )
    model.encoder.check(as_input(read.encoded))
    content = packed(model)
    name = model_name(model.name)
    parts = [
        inert_element(f"hs-model-{number}", b64encode(content[at : at + CHUNK]))
        for number, at in enumerate(range(0, len(content), CHUNK))
    ]
    held = {
        "bytes": len(content),
        "text": first,
        "pair": None,
        "python": "hs.open()" if bundled else f"hs.open({model.name!r})",
        "examples": EXAMPLES if bundled else (),
    }
    whole = page(
        [],
        home="server",
        title=f"{name} · headscope",
        elements=[*parts, inert_element("hs-encoder", script("encoder"))],
        mask=model.tokenizer.mask_token,
        fills="masked_lm" in model.anatomy.tasks,
        model=held,
    )
    exact = all(row.dtype == "F16" for row in model.parameters)
    rounded = "" if exact else "; its weights are rounded to half precision"
    return whole, f"{name} in a page, {len(whole) / 1e6:,.1f} MB{rounded}; it needs no network and sends nothing"
