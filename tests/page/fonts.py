"""Fonts that the tests bring along, one very wide, one very narrow: the page must hold with whatever is installed."""

from __future__ import annotations

import base64
import json
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headscope import pages

if TYPE_CHECKING:
    from fontTools.ttLib import TTFont

FACTORS = {"wide": 1.6, "narrow": 0.5}
"""Factor of the width of DejaVu Sans, which is itself one of the widest common fonts."""
LANGUAGES = ("en", "ja", "zh")
FULL = [(kind, language) for kind in FACTORS for language in LANGUAGES]
ODD, EVEN = (
    [pytest.param(*one, marks=() if at % 2 == rest else pytest.mark.slow) for at, one in enumerate(FULL)]
    for rest in (1, 0)
)
"""Fonts and languages: two tests, of pages with the same styles, have each pair of them once; the others are slow."""
BOX = 0x25A1
"""The character that stands for all that DejaVu lacks."""


def dejavu() -> TTFont:
    """The font; its libraries are imported late, for few workers look at one."""
    import matplotlib
    from fontTools.ttLib import TTFont

    return TTFont(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


def advance(text: str) -> list[float]:
    """How far each character goes in DejaVu Sans, in em."""
    built = dejavu()
    return [built["hmtx"][built.getBestCmap()[ord(one)]][0] / built["head"].unitsPerEm for one in text]


@cache
def font(kind: str, text: str) -> bytes:
    """DejaVu Sans, which comes with matplotlib, stretched or squeezed: a TrueType file with all characters of `text`.

    What DejaVu lacks, above all Chinese and Japanese, is a box one em wide, as it is in any font.
    """
    from fontTools.misc.roundTools import otRound
    from fontTools.pens.recordingPen import DecomposingRecordingPen
    from fontTools.pens.transformPen import TransformPen
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from fontTools.subset import Options, Subsetter

    built = dejavu()
    characters = {ord(character) for character in text if character.isprintable()}
    subsetter = Subsetter(Options(layout_features=[], hinting=False, drop_tables=["FFTM", "GPOS", "GSUB", "GDEF"]))
    subsetter.populate(unicodes={*characters, BOX})
    subsetter.subset(built)
    old, box = built.getGlyphSet(), built.getBestCmap()[BOX]
    factors = dict.fromkeys(built.getGlyphOrder(), FACTORS[kind])
    factors[box] = built["head"].unitsPerEm / old[box].width
    outlines = {}
    for name, factor in factors.items():
        lines, pen = DecomposingRecordingPen(old), TTGlyphPen(None)
        old[name].draw(lines)
        lines.replay(TransformPen(pen, (factor, 0, 0, 1, 0, 0)))
        outlines[name] = pen.glyph(), otRound(factor * old[name].width)
    for name, (outline, advance) in outlines.items():
        built["glyf"][name] = outline
        built["hmtx"][name] = advance, getattr(outline, "xMin", 0)
    for table in built["cmap"].tables:
        table.cmap = {**dict.fromkeys(characters, box), **table.cmap}
    written = BytesIO()
    built.save(written)
    return written.getvalue()


def brought(kind: str, page: str = "page") -> str:
    """A script that shows every text of a page in one of the tests' own fonts, before the page's own script runs.

    Args:
        page: which of the built pages.
    """
    contents = json.dumps(base64.b64encode(font(kind, pages.template(page) + pages.words().decode())).decode())
    return f"""(() => {{
      const face = new FontFace("Brought", Uint8Array.from(atob({contents}), (one) => one.charCodeAt(0)));
      document.fonts.add(face);
      face.load();
      const sheet = new CSSStyleSheet();
      const rules = ["font-family", "--text", "--mono"].map((one) => `${{one}}: Brought !important;`);
      sheet.replaceSync(`* {{ ${{rules.join("")}} }}`);
      document.adoptedStyleSheets.push(sheet);
    }})()"""
