"""What stands on a survey's report, as HTML: every name and number in it goes through `visible`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from headscope._survey.drawing import cluster_figure, figures
from headscope._survey.figures import CLUSTERS_TITLE
from headscope._survey.findings import Findings
from headscope._survey.scaling import classical_scaling
from headscope._survey.wording import Telling, counted, shown, telling
from headscope.checkpoint import called
from headscope.statistics import CATALOG

MANY = 12
"""Heads across from which the grid's cells are small."""


def visible(text: str) -> str:
    """Text that nobody vouches for, as HTML: markup escaped, what is not printed (overrides, controls) spelled out."""
    spelled = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
    return escape(spelled)


def name(text: str) -> str:
    """A name from a file or a person, kept from turning the line around it."""
    return f"<bdi>{visible(text)}</bdi>"


def title(found: Findings) -> str:
    """What the report is called."""
    return f"{_called(found)} over {found.manifest['corpus']['name']} · headscope survey"


def _called(found: Findings) -> str:
    return called(str(found.manifest["model"]["name"]))


def sections(found: Findings) -> str:
    """The report's body."""
    return "\n".join(
        [
            _header(found),
            "<main>",
            _grid(found),
            _telling(found),
            _figures(found),
            _definitions(found),
            _settings(found),
            _refused(found),
            '<p class="quiet small">Weights say where a head looks, not what its looking does to the output.</p>',
            "</main>",
        ]
    )


def _header(found: Findings) -> str:
    manifest = found.manifest
    model, counts = manifest["model"], manifest["counts"]
    numbers = {
        "document": counts["documents"],
        "window": counts["windows"],
        "token": counts["tokens"],
        "layer": len(found.layers),
        "head": len(found.named),
        "parameter": model["parameters"],
    }
    items = "".join(
        f"<div><dt>{label}{'' if number == 1 else 's'}</dt><dd>{number:,}</dd></div>"
        for label, number in numbers.items()
    )
    notes = ""
    if counts["refused"]:
        one = counts["refused"] == 1
        reasons = ", ".join(f"{count:,} {visible(reason)}" for reason, count in manifest["refused"]["reasons"].items())
        notes = (
            f'<p class="note">{counts["refused"]:,} of {counts["documents"] + counts["refused"]:,} documents '
            f"{'was' if one else 'were'} refused and {'is' if one else 'are'} in no number here: {reasons}. "
            '<a href="#refused">Which</a></p>'
        )
    return (
        '<header><p class="brand">headscope · statistics of every head over a corpus</p>'
        f"<h1>{name(_called(found))} over {name(manifest['corpus']['name'])}</h1>"
        f'<p class="quiet">{visible(str(model["class"]))}, '
        f"windows of at most {counted(manifest['settings']['length'], 'token')}, "
        f"{visible(str(manifest['settings']['dtype']))} on {visible(str(manifest['settings']['device']))}</p>"
        f'<dl class="counts">{items}</dl>{notes}</header>'
    )


def _grid(found: Findings) -> str:
    options = "".join(f'<option value="{at}">{statistic}</option>' for at, statistic in enumerate(found.statistics))
    there = set(found.named)
    first = next(iter(found.statistics), None)
    means = found.values(first) if first else None
    rows = []
    for at, layer in enumerate(found.layers):
        cells = []
        for column, head in enumerate(found.heads):
            if (layer, head) in there:
                value = shown(float(means[at, column])) if means is not None else "-"
                cells.append(f'<td><button type="button">{value}</button></td>')
            else:
                cells.append('<td><button type="button" disabled aria-label="no such head"></button></td>')
        rows.append(f'<tr><th scope="row">{layer}</th>{"".join(cells)}</tr>')
    across = "".join(f'<th scope="col">{head}</th>' for head in found.heads)
    small = " many" if len(found.heads) > MANY else ""
    nearest = '<p class="nearest small" id="nearest"></p>' if found.distances is not None else ""
    fields = "".join(f'<th scope="col">{label}</th>' for label in ("mean", "s.d.", "5%", "25%", "50%", "75%", "95%"))
    return f"""<section id="grid" class="sides"><div>
<h2>Every head</h2>
<div class="tools"><label>coloured by <select id="statistic">{options}</select></label>
<label>scale <select id="scale">
<option value="zero">from 0</option><option value="range">from lowest to highest</option></select></label></div>
<p class="meaning quiet" id="meaning"></p>
<div class="scroll"><table class="grid{small}">
<caption id="caption">{first or "no statistic"}, mean of every head</caption>
<thead><tr><td></td>{across}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>
<div class="legend"><span id="low"></span><span class="ramp" id="ramp" aria-hidden="true"></span>
<span id="high"></span><span class="quiet" id="unit"></span></div>
<p class="under" id="under" aria-hidden="true"></p>
<noscript><p class="note">Colours and the numbers of a head need JavaScript, which is off.
All numbers are in aggregates.json beside this file.</p></noscript>
</div><div>
<h2 id="head">Head</h2>
<p id="said" aria-live="polite"></p>
<svg class="spread" id="spread" viewBox="0 0 400 70" role="img"
aria-label="How this head's windows are spread; the numbers are in the table below"></svg>
<p class="quiet small">Over its windows: line 5% to 95%, box 25% to 75%, bar the median, dot the mean.
Below: the means of all heads.</p>
{nearest}
<div class="scroll"><table class="table">
<caption class="quiet small">all statistics of this head, over windows</caption>
<thead><tr><th scope="col">statistic</th>{fields}</tr></thead><tbody id="numbers"></tbody></table></div>
</div></section>"""


def _telling(found: Findings) -> str:
    items = [_sentence(found, one) for statistic in found.statistics for one in telling(found, statistic)]
    nothing = [statistic for statistic, fields in found.statistics.items() if not np.isfinite(fields["mean"]).any()]
    if nothing:
        items.append(f"<li>Nothing to measure in this model and corpus: {', '.join(nothing)}.</li>")
    return (
        '<section><h2>Heads that stand out</h2><p class="quiet small">Head 3.5 is layer 3, head 5; both count from 0. '
        "Means over windows; then the next heads, and the median of all.</p>"
        f'<ul class="heads">{"".join(items)}</ul></section>'
    )


def _sentence(found: Findings, one: Telling) -> str:
    def button(layer: int, head: int) -> str:
        cell = found.layers.index(layer) * len(found.heads) + found.heads.index(head)
        return f'<button type="button" data-head="{cell}" data-statistic="{one.statistic}">{layer}.{head}</button>'

    (layer, head, value), *others = one.heads
    then = ", ".join(f"{button(*other[:2])} ({shown(other[2])})" for other in others)
    unit = CATALOG[one.statistic].unit.name.split(",")[0].split(";")[0]
    unit = f" {unit}" if unit in ("nats", "tokens") else ""
    return (
        f"<li>{button(layer, head)} {one.says}: {shown(value)}{unit}, in half of the windows {shown(one.low)} to "
        f"{shown(one.high)}.{f' Then {then}.' if then else ''} "
        f'<span class="quiet">Median head {shown(one.middle)}. <code>{one.statistic}</code></span></li>'
    )


def _figures(found: Findings) -> str:
    parts = [
        f"<figure><h3>{heading}</h3>{drawing}<figcaption>Each point is a head, its mean over windows; the line is the "
        f"mean of a layer's heads. After {source}.</figcaption></figure>"
        for heading, source, drawing in figures(found)
    ]
    if found.distances is not None:
        kept = classical_scaling(found.distances).kept
        windows = len(found.manifest.get("similarity", {}).get("windows", []))
        parts.append(
            f"<figure><h3>{CLUSTERS_TITLE}</h3>{cluster_figure(found)}<figcaption>Classical multidimensional scaling "
            f"(Torgerson 1952) of the Jensen-Shannon distances between heads, mean over {counted(windows, 'window')}. "
            f"The plane holds {100 * kept:.0f}% of the squared distances: in what is left out, neighbours "
            "may differ. Name: layer.head. "
            "After Clark et al. 2019, figure 6.</figcaption></figure>"
        )
    return f'<section><h2>Figures</h2><div class="figures">{"".join(parts)}</div></section>'


def _definitions(found: Findings) -> str:
    items = "".join(
        f"<dt>{statistic}</dt><dd>{visible(CATALOG[statistic].described)}</dd>" for statistic in found.statistics
    )
    left_out = "".join(
        f"<dt>{visible(statistic)}</dt><dd>left out: {visible(str(reason))}</dd>"
        for statistic, reason in found.manifest["left_out"].items()
    )
    return (
        '<section><h2>What is measured</h2><p class="quiet small">For each query; a window\'s number is the mean over '
        "its queries, a head's the mean over windows.</p>"
        f'<dl class="definitions">{items}{left_out}</dl></section>'
    )


def _settings(found: Findings) -> str:
    manifest = found.manifest
    corpus = manifest["corpus"]
    rows = {
        "model": manifest["model"]["name"],
        "weights, sha256": manifest["model"]["sha256"],
        "corpus": f"{corpus['name']} ({corpus['kind']}, {counted(len(corpus['files']), 'file')})",
        **{f"setting {key}": value for key, value in manifest["settings"].items()},
        **{f"version of {key}": value for key, value in manifest["versions"].items()},
    }
    files = _rows((file["name"], f"{file['bytes']:,} bytes") for file in corpus["files"][:1000])
    return (
        "<section><h2>How it was made</h2>"
        f'<table class="table facts"><tbody>{_rows(rows.items())}</tbody></table>'
        f"<details><summary>Files of the corpus</summary>"
        f'<table class="table facts"><tbody>{files}</tbody></table></details>'
        "</section>"
    )


def _rows(pairs: Any) -> str:
    return "".join(
        f'<tr><th scope="row">{name(str(key))}</th><td class="wide">{name(_plain(value))}</td></tr>'
        for key, value in pairs
    )


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _refused(found: Findings) -> str:
    refused: Mapping[str, Any] = found.manifest["refused"]
    if not refused["documents"]:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{name(one["document"])}</th><td class="wide">{visible(one["detail"])}</td></tr>'
        for one in refused["documents"]
    )
    more = found.manifest["counts"]["refused"] - len(refused["documents"])
    rest = f'<p class="quiet small">and {more:,} more</p>' if more > 0 else ""
    return (
        '<section id="refused"><h2>Refused documents</h2>'
        f'<table class="table facts"><tbody>{rows}</tbody></table>{rest}</section>'
    )
