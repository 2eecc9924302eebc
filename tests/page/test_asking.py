"""Questions to the grid, from the finding that a page opens on; filters reach every panel: numbers as computed here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import SETTLED, Watch, canvas, go, head_of, number, patiently, table, until

import headscope as hs
from headscope.heads import CATALOG
from headscope.results.explained import Cell, Finding

if TYPE_CHECKING:
    from jaxtyping import Float
    from playwright.sync_api import Page


CLOSE = 1e-3
TEXT = "The tortoise did not cross the street because the tortoise was too tired."


@pytest.fixture(scope="module")
def trace(minilm: hs.Model) -> hs.Trace:
    return minilm.trace(TEXT)


@pytest.fixture(scope="module")
def file(trace: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace.to_html(tmp_path_factory.mktemp("page") / "asking.html", dtype="fp32", runs=False)


def everywhere(trace: hs.Trace, queries: list[int], keys: list[int]) -> dict[str, float]:
    """By head: the mean over the queries of the summed weights on the keys."""
    return {
        f"{layer}.{head}": float(np.asarray(trace[layer, head].weights)[np.ix_(queries, keys)].sum(-1).mean())
        for layer in trace.numbers
        for head in trace.head_numbers(layer)
    }


def listed(page: Page, name: str) -> dict[str, float]:
    """A list of heads and their numbers, once it is there."""
    page.wait_for_selector(f"[data-test={name}] [data-head]")
    until(page, SETTLED)
    buttons = page.locator(f"[data-test={name}] [data-head]").all()
    return {str(one.get_attribute("data-head")): float(one.get_attribute("data-number") or "nan") for one in buttons}


def best(numbers: dict[str, float], most: int) -> dict[str, float]:
    return dict(sorted(numbers.items(), key=lambda pair: -pair[1])[:most])


def link_of(trace: hs.Trace) -> tuple[int, int, int, int]:
    cell = next(finding.cells[0] for finding in trace.findings() if finding.kind == "link")
    assert cell.query is not None
    assert cell.key is not None
    return cell.layer, cell.head, cell.query, cell.key


def test_a_fresh_page_opens_on_the_strongest_link(watch: Watch, trace: hs.Trace, file: Path) -> None:
    """Every finding says its number and leads to its cell."""
    layer, head, query, key = link_of(trace)
    page = watch().open(file.as_uri() + "#theme=dark")
    assert head_of(page) == f"Head {layer}.{head}"
    weight = trace[layer, head].weights[query, key]
    page.wait_for_selector("[data-test=weight]")
    assert number(page.locator("[data-test=weight]").inner_text()) == pytest.approx(weight, abs=CLOSE)
    until(page, f"location.hash.includes('q={query}') && location.hash.includes('k={key}')")
    assert page.locator(".finding[aria-pressed=true]").first.get_attribute("data-kind") == "link"
    ranks = listed(page, "ranks")
    expected = best(everywhere(trace, [query], [key]), 6)
    assert list(ranks) == list(expected)
    assert ranks == pytest.approx(expected, abs=CLOSE)
    page.keyboard.press("Enter")
    assert page.locator(".step:not(.shut)").count() == 7
    go(page, "l=1&h=1")
    findings = trace.findings()
    chips = page.locator(".finding")
    assert 1 < chips.count() == len(findings) <= 5
    for n, finding in enumerate(findings):
        text = chips.nth(n).inner_text()
        cell = finding.cells[0]
        share = finding.numbers.get("weight", finding.numbers.get("overlap", finding.numbers.get("ratio", -1.0)))
        figure = f"{share:.2f}".lstrip("0") if finding.kind == "link" else f"{100 * min(share, 0.99):.0f}%"
        assert figure in text
        brought = [finding.numbers[name] for name in ("brings", "most") if name in finding.numbers]
        shares = ["0" if abs(one) < 0.005 else f"{one:.2f}".replace("0.", ".").replace("-", "−") for one in brought]
        assert re.findall(r"(?:brings|; [\d.]+) ([−.\d]+)(?=;|$)", text) == shares
        assert finding.kind == "sink" or f"{cell.layer}.{cell.head}" in text
        chips.nth(n).click()
        assert head_of(page) == f"Head {cell.layer}.{cell.head}"
        if cell.query is not None and cell.key is not None:
            until(page, f"location.hash.includes('q={cell.query}') && location.hash.includes('k={cell.key}')")
            named = (cell.query, cell.key) if finding.kind == "link" else ()
            assert all(trace.tokens[place].removeprefix("##") in text for place in named)


def test_what_is_no_share_of_one_head_s_weight_is_not_called_one(
    watch: Watch, cat: hs.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two heads that look alike are held against unrelated queries, what a head writes against its layer's average."""
    first, second = Cell(0, 0), Cell(1, 1)
    told = (
        Finding("alike", "", {"overlap": 0.91, "between": 0.3}, (first, second), 1.0),
        Finding("negligible", "", {"length": 0.1, "ratio": 0.04}, (first,), 1.0),
    )
    monkeypatch.setattr("headscope.page.trace.findings", lambda *_, **__: told)
    page = watch().open(cat.to_html(tmp_path / "alike.html", runs=False).as_uri())
    assert page.locator(".finding").all_inner_texts() == [
        "Heads 0.0 and 1.1 look alike\n91% of their weight on the same keys; 30% for unrelated queries",
        "Head 0.0 writes next to nothing\nvectors 4.0% as long as its layer's average",
    ]


def test_where_nothing_stands_out_the_page_says_so(watch: Watch, bert: hs.Model, tmp_path: Path) -> None:
    page = watch().open(bert.trace("cat").to_html(tmp_path / "one.html").as_uri())
    assert page.locator(".findings p").inner_text() == "Nothing stands out in this text."
    assert head_of(page) == "Head 0.0"


def test_the_grid_has_the_weight_of_the_pinned_cell(watch: Watch, trace: hs.Trace, file: Path) -> None:
    """`e` walks down the ranking and back; what the question asks is named, or missing, in words; a meter is as long as
    its number is large.
    """
    page = watch().open(file.as_uri() + "#by=weight&q=9&k=2&face=values")
    expected = everywhere(trace, [9], [2])
    assert table(page) == pytest.approx(list(expected.values()), abs=CLOSE)
    ranks = listed(page, "ranks")
    assert ranks == pytest.approx(best(expected, len(ranks)), abs=CLOSE)
    assert list(ranks) == list(best(expected, len(ranks)))
    page.keyboard.press("j")
    assert table(page) == pytest.approx(list(everywhere(trace, [10], [2]).values()), abs=CLOSE)
    go(page, "by=weight&q=9&k=2&l=0&h=0")
    table(page)
    order = list(best(everywhere(trace, [9], [2]), 4))

    def place() -> str:
        return ".".join(re.findall(r"\d+", head_of(page)))

    start = 1 if place() == order[0] else 0
    for expected in order[start:]:
        page.keyboard.press("e")
        assert place() == expected
    for expected in reversed(order[:-1]):
        page.keyboard.press("E")
        assert place() == expected
    page.keyboard.press("E")
    assert place() == order[0]
    page.locator("[data-test=ranks] [data-head]").nth(2).click()
    assert place() == order[2]
    # “Which heads look from tortoise at tortoise?” named no piece
    first = trace.tokens.index("##to")
    go(page, f"l=1&h=1&q={first}&k={first - 1}&by=weight")
    chips = page.locator("[data-test=asked] bdi")
    assert [one.lower() for one in chips.all_inner_texts()] == ["to", "tor"]
    go(page, f"l=1&h=1&q={first}&k={first}&by=weight")
    assert [one.lower() for one in chips.all_inner_texts()] == ["tortoise"] * 2
    go(page, "by=weight")
    assert "Click a cell" in page.locator("[data-test=asked]").inner_text()
    page.select_option("[data-test=statistic]", "mass")
    assert "Shift-click" in page.locator("[data-test=asked]").inner_text()
    assert page.locator("[data-test=ranks] [data-head]").count() == 0
    # in order of size, the first row of tiles has the longest meter, and the last row a short one or none
    go(page, "by=strongest&order=high&l=5&h=11")
    listed(page, "ranks")
    red, _, blue, opaque = np.moveaxis(canvas(page, ".heads canvas"), -1, 0)
    bars = (opaque > 200) & (blue > red + 60) & (red < 60)
    runs = [max(map(len, "".join(" x"[one] for one in line).split()), default=0) for line in bars.astype(int)]
    half = len(runs) // 2
    assert max(runs[:half]) > 1.3 * max(runs[-half // 3 :])


def test_chosen_sets_have_the_weight_between_them(watch: Watch, trace: hs.Trace, file: Path) -> None:
    """Shift-click adds, dragging takes a passage, Esc lets go; all is in the address. All of a word can be chosen."""
    page = watch().open(file.as_uri() + "#l=1&h=1")
    assert head_of(page) == "Head 1.1"  # an address with a state wins over the finding that a page opens on
    assert page.locator("[data-test=weight]").count() == 0
    assert page.locator(".cell").bounding_box()["height"] < 60  # type: ignore[index]
    right = page.locator(".right .token")
    right.nth(2).click(modifiers=["Shift"])
    right.nth(7).click(modifiers=["Shift"])
    everyone = list(range(len(trace)))
    assert table(page) == pytest.approx(list(everywhere(trace, everyone, [2, 7]).values()), abs=CLOSE)
    left = page.locator(".left .token")
    left.nth(4).hover()
    page.mouse.down()
    left.nth(6).hover()
    page.mouse.up()
    until(page, "location.hash.includes('set=4.5.6') && location.hash.includes('on=2.7')")
    expected = everywhere(trace, [4, 5, 6], [2, 7])
    assert table(page) == pytest.approx(list(expected.values()), abs=CLOSE)
    assert listed(page, "ranks") == pytest.approx(best(expected, 6), abs=CLOSE)
    page.reload()
    page.wait_for_selector("html[data-painted]")
    assert table(page) == pytest.approx(list(expected.values()), abs=CLOSE)
    assert page.locator(".left .token.chosen").count() == 3
    right.nth(7).click(modifiers=["Shift"])
    assert table(page) == pytest.approx(list(everywhere(trace, [4, 5, 6], [2]).values()), abs=CLOSE)
    page.keyboard.press("Escape")
    until(page, "!location.hash.includes('set=') && !location.hash.includes('on=')")
    page.keyboard.press("/")
    page.keyboard.type("tortoise")
    page.locator("[data-test=find-keys]").click()
    places = [n for n, token in enumerate(trace.tokens) if token in ("tor", "##to", "##ise")]
    assert len(places) == 6
    assert table(page) == pytest.approx(list(everywhere(trace, everyone, places).values()), abs=CLOSE)
    assert "tortoise ×2" in page.locator("[data-test=asked]").inner_text()


NEAR = 2e-3
Rows = Sequence[Sequence[int]]


def left(trace: hs.Trace, state: str) -> tuple[Rows, Rows]:
    """The tokens of each row and column that filters leave."""
    groups: list[list[int]] = []
    for place, word in enumerate(trace.words):
        same = place and word is not None and trace.words[place - 1] == word
        if "words=1" in state and same and trace.segments[place] == trace.segments[place - 1]:
            groups[-1].append(place)
        elif not ("special=0" in state and trace.special[place]):
            groups.append([place])
    if "of=ab" not in state:
        return groups, groups
    first, second = ([group for group in groups if trace.segments[group[0]] == side] for side in (0, 1))
    return first, second


def picture(trace: hs.Trace, layer: int, head: int, state: str) -> Float[np.ndarray, "rows columns"]:
    """What the page draws: means over a row's tokens, sums over a column's, times norms where they count."""
    weights = np.asarray(trace[layer, head].weights, dtype=np.float64)
    if "normed=1" in state:
        value = trace.layers[layer].v
        weights = weights * np.linalg.norm(value[head] @ np.asarray(trace.source.W_O(layer, head)), axis=-1)
    rows, columns = left(trace, state)
    if "special=0" in state:
        kept = [place for column in columns for place in column]
        weights = weights / weights[:, kept].sum(-1, keepdims=True)
    return np.array([[weights[np.ix_(row, column)].sum(-1).mean() for column in columns] for row in rows])


def statistics(trace: hs.Trace, layer: int, head: int, state: str) -> dict[str, float]:
    drawn = picture(trace, layer, head, state)
    shares = drawn / drawn.sum(-1, keepdims=True)
    rows, columns = left(trace, state)
    previous = [shares[r, c] for r, row in enumerate(rows) for c, column in enumerate(columns) if row[0] - 1 in column]
    places = np.array([[column[0] - row[0] for column in columns] for row in rows])
    text = np.where(trace.special, -1, trace.segments)
    signs = np.array([trace.tokens[column[0]] == "." for column in columns])
    across = text[[column[0] for column in columns]]
    other = [shares[r, across == 1 - text[row[0]]].sum() for r, row in enumerate(rows) if text[row[0]] >= 0]
    first, last = (shares[:, [trace.tokens[column[0]] == one for column in columns]] for one in ("[CLS]", "[SEP]"))
    resting = {"cls": float(first.sum(-1).mean()), "sep": float(last.sum(-1).mean())}
    return {
        **(resting if state not in ("special=0", "of=ab") else {}),
        "punctuation": float(shares[:, signs].sum(-1).mean()) if signs.any() else float("nan"),
        "other_sentence": float(np.mean(other)),
        "entropy": float(-(shares * np.log(np.maximum(shares, 1e-300))).sum(-1).mean()),
        "strongest": float(shares.max(-1).mean()),
        "previous": float(np.mean(previous)) if previous else float("nan"),
        "distance": float((shares * abs(places)).sum(-1).mean()),
    }


def test_the_grid_s_statistics_are_of_what_is_left(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    """In the grid and beside it, one statistic after the other, under each filter, which rankings follow."""
    page = watch().open(f"{cat_file.as_uri()}#h=1")
    for state in ("", "special=0", "words=1", "of=ab", "normed=1"):
        heads = [statistics(cat, layer, head, state) for layer in cat.numbers for head in cat.head_numbers(layer)]
        go(page, f"h=1&{state}")
        for name in heads[0]:
            if (state, name) == ("of=ab", "previous"):
                continue  # no token of the first text follows one of the second
            page.select_option("[data-test=statistic]", name)
            expected = [numbers[name] for numbers in heads]
            patiently(page, partial(same_statistic, page, CATALOG[name].names[0], expected))
    go(page, "h=1&by=entropy&order=low&special=0")
    page.locator("[data-test=face-values]").click()
    until(page, "document.querySelector('[data-test=grid-table] tbody td').textContent !== '–'")
    table(page)
    expected = {
        f"{layer}.{head}": statistics(cat, layer, head, "special=0")["entropy"]
        for layer in cat.numbers
        for head in cat.head_numbers(layer)
    }
    buttons = page.locator("[data-test=ranks] [data-head]").all()
    numbers = [float(one.get_attribute("data-number") or "nan") for one in buttons]
    assert numbers == pytest.approx(sorted(expected.values())[: len(numbers)], abs=NEAR)
    for button, one in zip(buttons, numbers, strict=True):
        assert expected[str(button.get_attribute("data-head"))] == pytest.approx(one, abs=NEAR)
    until(page, "location.hash.includes('face=values')")
    buttons[0].click()
    assert head_of(page) == f"Head {min(expected, key=lambda name: expected[name])}"


def same_statistic(page: Page, title: str, expected: list[float]) -> None:
    assert table(page) == pytest.approx(expected, rel=NEAR, abs=NEAR)
    chosen = page.locator(".facts tr.chosen")
    assert chosen.locator("th").inner_text() == title
    assert number(chosen.locator("td").last.inner_text()) == pytest.approx(expected[1], rel=NEAR, abs=NEAR)


def pictures(page: Page) -> str:
    """The thumbnails, as drawn."""
    drawn: str = page.evaluate("document.querySelector('.heads canvas').toDataURL()")
    return drawn


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> tuple[hs.Trace, Path]:
    trace = hs.open("-").trace("Alice loved antiquotations in Paris, and Paris loved Alice.")
    return trace, trace.to_html(tmp_path_factory.mktemp("alice") / "alice.html", runs=False)


def test_the_chain_s_number_is_the_picture_s(watch: Watch, alice: tuple[hs.Trace, Path]) -> None:
    """And the grid's; its heading has the number; where that is no token's weight, it names the steps' tokens."""
    trace, file = alice
    query, key = 5, 18  # "##qu", "##ice"
    weight = float(trace[3, 0].weights[query, key])
    page = watch().open(f"{file.as_uri()}#l=3&h=0&q={query}&k={key}&by=weight")
    chain = page.locator(".cell")
    for state in ("", "words=1", "special=0", "normed=1"):
        rows, columns = left(trace, state)
        r, c = (next(n for n, of in enumerate(side) if at in of) for side, at in ((rows, query), (columns, key)))
        drawn = picture(trace, 3, 0, state)[r, c]
        go(page, f"l=3&h=0&q={query}&k={key}&by=weight&{state}")
        page.wait_for_selector("[data-test=open-chain]")
        patiently(page, partial(status, page, drawn))
        patiently(page, partial(in_the_grid, page, drawn))
        assert number(chain.locator("h2").inner_text().split()[1]) == pytest.approx(drawn, abs=0.0051)
        assert number(chain.locator("[data-test=weight]").inner_text()) == pytest.approx(weight, abs=NEAR)
        note = chain.locator("p").inner_text()
        if state:
            numbers = [number(one) for one in re.findall(r"\d\S*\d", note.replace("×", " "))]
            assert numbers[0] == pytest.approx(drawn, abs=NEAR)
            assert numbers[-1] == pytest.approx(weight, abs=NEAR)
            assert "qu” → “ice" in re.sub("[\u2068\u2069]", "", note)
        else:
            assert note == ""
        page.keyboard.press("Enter")
        page.wait_for_selector(".step math")
        assert number(chain.locator("h1 b").inner_text()) == pytest.approx(drawn, abs=NEAR)
        assert chain.locator(".step h2").first.inner_text() == "Query of “\u2068qu\u2069”"
    # the model has no capitals; matrix, lists, lines and chain spell its tokens as the writer did
    assert "par" in trace.tokens
    go(page, "l=3&h=0&q=10&k=17&by=weight")
    page.wait_for_selector("[data-test=open-chain]")
    assert page.locator(".cell h2 bdi").all_inner_texts() == ["Par", "Al"]
    assert page.locator(".looks").first.inner_text().startswith("“\u2068Par\u2069” looks at")
    assert {"Al1", "·ice2", "Par10"} <= set(page.locator(".left .token bdi").all_inner_texts())
    page.keyboard.press("w")
    until(page, "document.querySelector('.cell h2 bdi')?.textContent === 'Paris'")
    assert page.locator(".cell h2 bdi").all_inner_texts() == ["Paris", "Alice"]
    assert page.locator("[data-test=asked] bdi").all_inner_texts() == ["Paris", "Alice"]
    # a head that rests on [CLS] has a dark column; without special tokens it has none, and the note says so
    go(page, "h=1&by=entropy")
    until(page, SETTLED)
    note = page.locator(".grid")
    before = pictures(page)
    assert "filters" not in note.inner_text()
    page.locator("[data-test=special]").check()
    until(page, SETTLED)
    assert "what the filters leave" in note.inner_text()
    assert pictures(page) != before
    page.locator("[data-test=special]").uncheck()
    until(page, "!document.querySelector('.grid').textContent.includes('what the filters leave')")
    assert pictures(page) == before


def in_the_grid(page: Page, drawn: float) -> None:
    assert table(page)[4 * 3] == pytest.approx(drawn, abs=NEAR)


def status(page: Page, drawn: float) -> None:
    assert number(page.locator("[data-test=value]").inner_text()) == pytest.approx(drawn, abs=NEAR)
