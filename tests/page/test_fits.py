"""What fits a laptop's screen: large letters and arcs, whole readouts and lists, and one notation for one number."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import OPTIONS, Watch, box_of, number, ranked, unreadable, until

import headscope as hs

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "The animal did not cross the street because it was too tired."
SIZES = [(1440, 900), (1280, 720)]


Files = Callable[..., tuple[hs.Trace, Path]]


@pytest.fixture(scope="module")
def files(minilm: hs.Model, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A text's trace and its page, made once; runs, which take seconds, add a line to the list beside the grid."""
    folder = tmp_path_factory.mktemp("fits")

    @cache
    def made(text: str, *, runs: bool = False) -> tuple[hs.Trace, Path]:
        trace = minilm.trace(text)
        return trace, trace.to_html(folder / f"{len([*folder.iterdir()])}.html", dtype="fp32", runs=runs)

    return made


def laptop(watch: Watch, size: tuple[int, int], file: Path, state: str) -> Page:
    """A page without its options, as a laptop shows it."""
    watched = watch(viewport=dict(zip(("width", "height"), size, strict=True)))
    watched.page.add_init_script(OPTIONS.replace("'1'", "'0'"))
    page = watched.open(f"{file.as_uri()}#{state}")
    ranked(page)
    return page


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (TEXT, 1),
        ("The animal did not cross the street because it was too tired to walk that far today.", 1),
        (
            "Unfortunately mathematicians misunderstood his extraordinary philosophical considerations about "
            "electromagnetic consciousness throughout numerous international investigations.",
            2,
        ),
    ],
)
def test_a_sentence_of_twenty_tokens_has_large_letters_and_arcs(
    watch: Watch, files: Files, text: str, lines: int
) -> None:
    trace, file = files(text)
    assert len(trace) <= 20
    page = laptop(watch, (1280, 720), file, "l=3&h=1&q=9&k=2&by=weight")
    until(page, "document.querySelectorAll('.arcs path').length > 0")
    sizes = page.evaluate(
        "[...document.querySelectorAll('.said-word:not(.special) > bdi')].map((one) => getComputedStyle(one).fontSize)"
    )
    assert min(float(size.removesuffix("px")) for size in sizes) >= 24
    tops = page.evaluate("[...document.querySelectorAll('.said-word')].map((one) => one.offsetTop)")
    assert len(set(tops)) == lines
    weights = np.delete(np.asarray(trace[3, 1].weights[9]), 9)
    assert page.locator(".arcs path").count() == int((weights >= 0.04).sum())
    ribbon = box_of(page, ".ribbon")
    arcs = page.locator(".arcs path").all()
    boxes = [one.bounding_box() for one in arcs]
    assert all(
        box and box["y"] >= ribbon["y"] - 6 and box["y"] + box["height"] <= ribbon["y"] + ribbon["height"]
        for box in boxes
    )
    assert unreadable(page) == []
    assert page.locator(".scroller").evaluate("(one) => one.scrollHeight <= one.clientHeight")


def test_pieces_of_a_word_stand_close(watch: Watch, files: Files) -> None:
    trace, file = files("The tortoise was unhurried.")
    page = laptop(watch, SIZES[0], file, "q=2")
    words = page.locator(".said-word > bdi")
    boxes = [one.bounding_box() for one in words.all()]
    gaps = [b["x"] - a["x"] - a["width"] for a, b in pairwise(boxes) if a and b]
    inside = [trace.words[n + 1] is not None and trace.words[n] == trace.words[n + 1] for n in range(len(gaps))]
    assert any(inside)
    assert max(gap for gap, one in zip(gaps, inside, strict=True) if one) <= 0.5
    assert min(gap for gap, one in zip(gaps, inside, strict=True) if not one) >= 0


@pytest.mark.parametrize("size", SIZES)
def test_the_readout_has_both_words_in_full(watch: Watch, files: Files, size: tuple[int, int]) -> None:
    words = "Counterrevolutionaries", "uncharacteristically"
    trace, file = files(f"{words[0]} {words[1]} mistrusted it.")
    last = max(n for n, word in enumerate(trace.words) if word == 1)
    page = laptop(watch, size, file, f"q=1&k={last}&words=1")
    status = page.locator("[data-test=status]")
    assert all(word in status.inner_text() for word in words)
    outer = box_of(page, ".picture")
    for one in status.locator("> *").all():
        box = one.bounding_box()
        assert box is not None
        assert outer["x"] <= box["x"]
        assert box["x"] + box["width"] <= outer["x"] + outer["width"]
        assert one.evaluate(
            "(it) => it.scrollWidth <= it.clientWidth + 1 || getComputedStyle(it).overflowX === 'visible'"
        )


@pytest.mark.parametrize("size", SIZES)
def test_the_list_beside_the_grid_is_whole_in_one_notation(watch: Watch, files: Files, size: tuple[int, int]) -> None:
    """What has no room leaves whole: no line is cut, and the last line counts the rest."""
    trace, file = files(TEXT, runs=True)
    page = laptop(watch, size, file, "l=3&h=1&q=9&k=2&by=weight")
    until(
        page,
        "(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight + 1)(document.querySelector('.inspector'))",
    )
    lines = page.locator(".ranked li[data-weight]:visible")
    assert lines.count() >= 3
    rest = page.locator(".ranked .rest")
    assert int(rest.inner_text().split()[0]) == len(trace) - lines.count()
    shown = [float(one.get_attribute("data-weight") or 0) for one in lines.all()]
    assert number(rest.locator("b").inner_text()) == pytest.approx(1 - sum(shown), abs=1e-3)
    end = box_of(page, ".inspector")
    assert all(box["y"] + box["height"] <= end["y"] + end["height"] for box in [box_of(page, ".ranked .rest")])
    until(page, "document.querySelector('[data-test=ranks] .here') !== null")
    # in texts three decimals, in pictures two digits without the nought; never a power of ten
    weight = float(trace[3, 1].weights[9, 2])
    told = [page.locator(f"[data-test={name}]").inner_text() for name in ("value", "weight")]
    told += [page.locator(".ranked .chosen b").inner_text(), page.locator("[data-test=cell]").inner_text().split()[1]]
    assert told == [f"{weight:.3f}"] * 4
    drawn = [
        page.locator(".said-word.seen small").inner_text(),
        page.locator("[data-test=ranks] .here").inner_text().split()[1],
    ]
    drawn += [page.locator(".finding.here small").inner_text().split("weight ")[1].split(",")[0]]
    assert drawn == [f"{weight:.2f}".lstrip("0")] * 3
    ends = [one.inner_text() for one in page.locator(".legend > :is(span, button):not([title=scale])").all()]
    assert [one for one in ends if one[:1].isdigit()] == ["0", "1", "0", "1"]
    assert not any("e−" in page.locator(one).inner_text() for one in (".inspector", ".cell", ".picture", ".findings"))
