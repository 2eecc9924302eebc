"""The options of `headscope survey`, as the command line spells them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.options import number

MODEL = "The model"
WORK = "The work"
RAY = "On Ray"

CorpusName = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        show_default=False,
        help="A folder or a pattern of text files; a .jsonl, .csv or .parquet file; a treebank (.conllu); a dataset "
        "saved with save_to_disk; or - for standard input, as one document.",
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        show_default=False,
        help="The folder to write to. The same command again goes on where it stopped.",
    ),
]
Field = Annotated[str, typer.Option("--field", metavar="NAME", help="The field or column of tables with the text.")]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        parser=number,
        metavar="N",
        help="Tokens of a window; 512, or as many as the model takes, unless told.",
    ),
]
StatisticNames = Annotated[
    str | None, typer.Option("--statistics", metavar="NAME,NAME…", help="Only these; all unless told.")
]
HeadDistances = Annotated[
    int,
    typer.Option(
        "--head-distances",
        parser=number,
        metavar="N",
        help="Also compare all pairs of heads, over N windows. Quadratic, so off.",
    ),
]
Labels = Annotated[
    bool, typer.Option("--labels", help="Also label every head: what it does among words, and how surely.")
]
Examples = Annotated[
    int,
    typer.Option("--examples", parser=number, metavar="N", help="Also keep each head's N most telling pairs of words."),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, cuda:1, mps.", rich_help_panel=MODEL)]
DType = Annotated[
    str, typer.Option("--dtype", metavar="fp32|fp16|bf16", help="The precision it runs in.", rich_help_panel=MODEL)
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens", parser=number, metavar="N", help="Tokens that go through together.", rich_help_panel=WORK
    ),
]
PartSize = Annotated[
    int | None,
    typer.Option(
        "--part-size",
        parser=number,
        metavar="N",
        help="Characters between one saved part and the next.",
        rich_help_panel=WORK,
    ),
]
MaxDocument = Annotated[
    int | None,
    typer.Option(
        "--max-document", parser=number, metavar="N", help="Refuse documents of more characters.", rich_help_panel=WORK
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=4096, metavar="N", help="Threads of each replica.", rich_help_panel=WORK),
]
OnRay = Annotated[
    bool, typer.Option("--ray", help="Work on Ray: on this machine, or where it is running.", rich_help_panel=RAY)
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT|auto", help="The Ray cluster to work on.", rich_help_panel=RAY),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=4096,
        metavar="N",
        help="Replicas; one per GPU, or per CPU, unless told.",
        rich_help_panel=RAY,
    ),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Don't write report.html.")]
Plots = Annotated[bool, typer.Option("--plots", help="Also write plots as SVG and PDF; needs the extra plot.")]
