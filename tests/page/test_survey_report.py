"""A survey's report in a real browser: the grid, a head's numbers, keys, and no request at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from looking import HOSTILE, Watched

from finished_survey import finished
from headscope._survey.report import write_report


def test_the_report_shows_the_aggregates_and_asks_for_nothing(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    folder = finished(tmp_path, missing=((1, 2),), name=HOSTILE[0], corpus=HOSTILE[1], refused=HOSTILE)
    path = write_report(folder)
    aggregates = json.loads((folder / "aggregates.json").read_text())["statistics"]
    watched = watch()
    page = watched.open(path.as_uri())
    assert page.title().startswith(f"{HOSTILE[0]} over {HOSTILE[1]}")
    assert HOSTILE[0] in page.locator("h1").inner_text()

    page.select_option("#statistic", label="offset")
    cells = page.locator(".grid td button")
    means = aggregates["offset"]["mean"]
    assert float(cells.nth(11).inner_text()) == round(means[2][3], 3 if abs(means[2][3]) < 10 else 2)
    assert cells.nth(6).is_disabled()
    strongest = max(range(3), key=lambda layer: max(map(abs, means[layer])))
    head = max(range(len(means[strongest])), key=lambda at: abs(means[strongest][at]))
    column = head if strongest != 1 or head < 2 else head + 1
    colour = cells.nth(4 * strongest + column).get_attribute("class")
    assert colour == ("d64" if means[strongest][head] > 0 else "d0")

    cells.nth(1).click()
    assert page.locator("#head").inner_text() == "Head 0.1"
    row = page.locator("#numbers tr", has_text="entropy").first.locator("td").all_inner_texts()
    fields = ("mean", "deviation", "q05", "q25", "q50", "q75", "q95")
    assert row == [f"{aggregates['entropy'][field][0][1]:.3f}" for field in fields]
    page.keyboard.press("ArrowDown")
    assert page.locator("#head").inner_text() == "Head 1.1"
    page.keyboard.press("ArrowRight")
    assert page.locator("#head").inner_text() == "Head 1.3"
    assert page.locator("#nearest button").count() == 5
    page.locator("[data-statistic=sep]").first.click()
    assert page.locator("#statistic option:checked").inner_text() == "sep"
    assert watched.asked == [path.as_uri()]
