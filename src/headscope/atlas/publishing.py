"""A survey on the hub: its tables as a dataset that the hub's viewer shows, and its site as a static Space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.checkpoint import called
from headscope.checkpoint.hub import upload
from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope.atlas.result import Survey

SHOWN = ("labels", "effects", "removal", "writes", "examples", "syntax", "relations", "aggregates")
"""Tables that the viewer shows, each as a configuration; the first one that there is opens first."""


def push_to_hub(survey: Survey, name: str, *, private: bool = False) -> list[str]:
    """Upload a survey. See `Survey.push_to_hub`."""
    title = f"The attention heads of {Path(called(survey.manifest['model']['name'])).name}"
    inside = ["manifest.json", *survey.manifest["files"], *(part["name"] for part in survey.manifest["parts"])]
    tables = [table for table in SHOWN if f"{table}.parquet" in survey.manifest["files"]]
    files: dict[str, bytes | Path] = {one: survey.folder / one for one in inside}
    configs = [{"config_name": table, "data_files": f"{table}.parquet"} for table in tables]
    card = {"pretty_name": title, "tags": ["headscope", "attention", "interpretability"], "configs": configs}
    site: dict[str, bytes | Path] = {
        path.relative_to(survey.folder / "site").as_posix(): path for path in _site(survey)
    }
    lines = [
        f"# {title}",
        _measured(survey),
        f"The heads as a site: the Space `{name}`." if site else "",
        f"To open it with headscope:\n\n```python\n{OPENING.format(name=name)}\n```",
    ]
    urls = [upload(name, "dataset", files | {"README.md": _card(card, *lines)}, title, private=private)]
    if site:
        space = {"title": title[:60], "sdk": "static", "app_file": "index.html", "datasets": [name]}
        pages = {**site, "README.md": _card(space, f"# {title}", _measured(survey))}
        urls.append(upload(name, "space", pages, title, private=private))
    return urls


OPENING = """import headscope as hs
from huggingface_hub import snapshot_download

survey = hs.open(snapshot_download("{name}", repo_type="dataset"))"""


def _site(survey: Survey) -> list[Path]:
    """The files of the site; none if the survey was made without one.

    Raises:
        InputError: the site is a single file, which a Space would show under another name than its links have.
    """
    if (survey.folder / "report.html").exists():
        raise InputError(
            "the survey's site is a single file, which can't be a Space",
            where=str(survey.folder / "report.html"),
            advice="run the same survey without single=True: its parts are kept",
        )
    return sorted(path for path in (survey.folder / "site").rglob("*") if path.is_file())


def _measured(survey: Survey) -> str:
    counts, model = survey.manifest["counts"], survey.manifest["model"]
    heads = sum(map(len, survey.aggregates["heads"]))
    return (
        f"{heads:,} heads of a {model['class']} in {len(survey.aggregates['heads'])} layers, measured by headscope "
        f"over {counts['documents']:,} documents, {counts['windows']:,} windows, {counts['tokens']:,} tokens."
    )


def _card(metadata: dict[str, Any], *paragraphs: str) -> bytes:
    """A README.md with metadata, as JSON, which YAML contains: nothing in it can be taken for anything else."""
    text = "\n\n".join(filter(None, paragraphs))
    return f"---\n{json.dumps(metadata, indent=2)}\n---\n\n{text}\n".encode()
