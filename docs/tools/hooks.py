"""MkDocs hooks: the READMEs become front pages, live pages get their place, and no page may need a network."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

HTML: dict[str, dict[str, str]] = {}
"""Page -> place in it -> the HTML that belongs there."""
FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent

README_PLACE = re.compile(r"<!-- (README(?:\.\w\w)?\.md) -->")
FRONT = {"README.md": "index.md", "README.ja.md": "ja.md", "README.zh.md": "zh.md"}
"""README -> the page of the site that it is."""
LANGUAGE = {"README.md": "en", "README.ja.md": "ja", "README.zh.md": "zh"}
ALONE = {"en": "Open it alone", "ja": "単独で開く", "zh": "单独打开"}
PICTURE = re.compile(r"\[?!\[([^\]]*)\]\(images/page\.png\)(?:\]\([^)]*\))?")
HEADING = re.compile(r"\A# headscope\n\n.*\n\n\*\*(.*?)[.。]?\*\*\n")
"""A README's name, its languages (for which the site has a switch), and what headscope is for."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
ABBREVIATION = re.compile(r'<abbr title="[^"]*">([^<]*)</abbr>')
LIVE_FOLDER = "live"
"""Of the site: the pages that others embed."""
OUTSIDE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", re.IGNORECASE)
LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
"""Element -> the attributes whose addresses a browser loads by itself."""
NOT_LOADED = {"canonical", "next", "prev", "alternate"}
"""Links (by rel) that are only said."""


def on_config(config: Any) -> Any:
    """Let the pages import their helpers, and compute in one thread: others would wait, at the full cost of a core."""
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before NumPy and torch are imported
        os.environ.setdefault(threads, "1")
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    from walk import LIVE

    shutil.rmtree(LIVE)  # what an earlier build by `mkdocs serve` left
    LIVE.mkdir()
    # nn.TransformerEncoder's fast path warns on padded texts, which readers can do nothing about.
    warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert a README into a page that includes it, then the code of the page's blocks and what they print."""
    from blocks import expand

    text, HTML[page.url] = expand(with_readme(markdown), page.file.src_path)
    in_english = not re.search(r"\b(ja|zh)\.md$", page.file.src_path)
    return text + (tooltips() if in_english and page.file.src_path != "glossary.md" else "")


def tooltips() -> str:
    """The glossary's words as abbreviations, which Markdown marks wherever they are used."""
    rows = re.findall(
        r"^\| ([^|]+) \| ([A-Z][^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.M
    )
    return "\n\n" + "\n".join(f"*[{word}]: {meaning}" for word, meaning in rows) + "\n"


def at_first_use(content: str) -> str:
    """A page's tooltips without those of words that it has used before."""
    used = set[str]()

    def kept(match: re.Match[str]) -> str:
        if match[1] in used:
            return match[1]
        used.add(match[1])
        return match[0]

    return ABBREVIATION.sub(kept, content)


def with_readme(markdown: str) -> str:
    """A page with the README that it includes, which has the page itself instead of its picture."""

    def readme(match: re.Match[str]) -> str:
        text = site_links((ROOT / match[1]).read_text(encoding="utf-8"))
        text = HEADING.sub(lambda found: f"# {found[1]}\n\n{strip_block(LANGUAGE[match[1]])}\n", text)
        return PICTURE.sub(lambda picture: live_picture(picture[1], LANGUAGE[match[1]]), text)

    return README_PLACE.sub(readme, markdown)


def strip_block(language: str) -> str:
    """The code that puts the strip on a front page."""
    return f"""```python exec="on" html="on" session="front {language}"
from strip import strip

print(strip({language!r}))
```"""


def live_picture(says: str, language: str) -> str:
    """The code that embeds what the READMEs' picture shows."""
    state = f"l=3&h=1&q=9&k=2&by=weight&lang={language}"
    return f"""```python exec="on" html="on" session="front {language}"
from walk import minilm, page

trace = minilm().trace("The animal did not cross the street because it was too tired.")
print(page(trace, "animal", at={state!r}, says={says!r}, alone={ALONE[language]!r}))
```"""


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Put the HTML that blocks printed in its place, and address the live pages as seen from this page."""
    from walk import LIVE_PLACE

    content = at_first_use(content)
    for place, html in HTML.pop(page.url, {}).items():
        content = content.replace(place, html)
    return content.replace(f'="{LIVE_PLACE}', f'="{"../" * page.url.count("/")}{LIVE_FOLDER}/')


def on_post_build(config: Any, **_: Any) -> None:
    """Copy the live pages to the site, and fail the build if a page would load anything from another host."""
    from strip import MODEL, model_script
    from walk import LIVE

    (LIVE / MODEL).write_text(model_script(), encoding="utf-8")
    shutil.copytree(LIVE, Path(config["site_dir"], LIVE_FOLDER), dirs_exist_ok=True)
    outside = [f"{path}: {address}" for path, address in outside_addresses(Path(config["site_dir"]))]
    if outside:
        from mkdocs.exceptions import PluginError

        raise PluginError("these pages would load something from another host:\n" + "\n".join(outside))


def site_links(readme: str) -> str:
    """The README's links as they are on the site: pages of docs/ by their place there, other files by name only."""

    def mended(match: re.Match[str]) -> str:
        picture, text, address = match.groups()
        if "://" in address or address.startswith("#"):
            return match[0]
        if address in FRONT:
            return f"{picture}[{text}]({FRONT[address]})"
        if address.startswith("docs/"):
            return f"{picture}[{text}]({address.removeprefix('docs/')})"
        return f"`{text}`" if text.rstrip("/") == address.rstrip("/") else f"{text} (`{address}`)"

    return LINK.sub(mended, readme)


class _Addresses(HTMLParser):
    """Collects what a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        if tag == "link" and set(values.get("rel", "").split()) & NOT_LOADED:
            return
        self.addresses += [values[name] for name in LOADED.get(tag, ()) if name in values]
        self.addresses += style_addresses(values.get("style", ""))
        if "srcdoc" in values:
            self.addresses += page_addresses(values["srcdoc"])

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.addresses += style_addresses(data)


def style_addresses(style: str) -> list[str]:
    """Addresses that a style sheet loads."""
    return [imported or url for imported, url in IN_STYLE.findall(style)]


def page_addresses(page: str) -> list[str]:
    """Addresses that an HTML page loads, including pages in its frames."""
    parser = _Addresses()
    parser.feed(page)
    parser.close()
    return parser.addresses


def outside_addresses(site: Path) -> Iterator[tuple[Path, str]]:
    """(file, address) of everything that a page or style sheet of a site loads from another host."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            addresses = page_addresses(text) if path.suffix == ".html" else style_addresses(text)
            yield from ((path.relative_to(site), address) for address in addresses if OUTSIDE.match(address))
