"""The options of `headscope survey`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.options import number

MODEL = "Model"
WORK = "Batches and parts"
RAY = "Ray"

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
        help="Folder to write to. Run the same command again to resume an interrupted survey.",
    ),
]
Field = Annotated[str, typer.Option("--field", metavar="NAME", help="Field or column that holds the text, in tables.")]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        parser=number,
        metavar="N",
        help="Tokens per window. By default 512, or the model's limit if that is lower.",
    ),
]
StatisticNames = Annotated[
    str | None,
    typer.Option("--statistics", metavar="NAME,NAME…", help="Measure only these statistics. By default all."),
]
HeadDistances = Annotated[
    int,
    typer.Option(
        "--head-distances",
        parser=number,
        metavar="N",
        help="Also compare all pairs of heads over N windows. Slow: quadratic in heads and tokens.",
    ),
]
Labels = Annotated[
    bool, typer.Option("--labels", help="Also label every head: its behaviour among words, with how sure it is.")
]
Examples = Annotated[
    int,
    typer.Option("--examples", parser=number, metavar="N", help="Also keep each head's N most telling pairs of words."),
]
Effects = Annotated[
    int,
    typer.Option(
        "--effects",
        parser=number,
        metavar="N",
        help="Also measure over N windows what silencing each head changes, and remove heads one by one.",
    ),
]
EffectsOutput = Annotated[
    str | None,
    typer.Option(
        "--effects-output",
        metavar="NAME",
        show_default=False,
        help="With --effects: the number that they change: loss (masked-LM), class (the predicted one's logit), "
        "embedding, or a class by name or number. By default the first of these that the model has.",
    ),
]
EffectsMethod = Annotated[
    str, typer.Option("--effects-method", metavar="zero|mean", help="With --effects: how to silence a head.")
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="Device: cpu, cuda, cuda:1, mps.", rich_help_panel=MODEL)
]
DType = Annotated[
    str, typer.Option("--dtype", metavar="fp32|fp16|bf16", help="Precision of the model.", rich_help_panel=MODEL)
]
BatchTokens = Annotated[
    int | None,
    typer.Option("--batch-tokens", parser=number, metavar="N", help="Most tokens per batch.", rich_help_panel=WORK),
]
PartSize = Annotated[
    int | None,
    typer.Option(
        "--part-size",
        parser=number,
        metavar="N",
        help="Characters per part; each part is saved when it is finished.",
        rich_help_panel=WORK,
    ),
]
MaxDocument = Annotated[
    int | None,
    typer.Option(
        "--max-document",
        parser=number,
        metavar="N",
        help="Refuse documents with more than N characters.",
        rich_help_panel=WORK,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=4096, metavar="N", help="Threads per replica.", rich_help_panel=WORK),
]
OnRay = Annotated[
    bool,
    typer.Option("--ray", help="Run on Ray: on a running cluster, or started on this machine.", rich_help_panel=RAY),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT|auto", help="Address of the Ray cluster.", rich_help_panel=RAY),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=4096,
        metavar="N",
        help="Number of replicas. By default one per GPU, or per CPU.",
        rich_help_panel=RAY,
    ),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Don't write the site.")]
Single = Annotated[bool, typer.Option("--single", help="Write the site as a single file, report.html.")]
Plots = Annotated[bool, typer.Option("--plots", help="Also write plots as SVG and PDF. Requires the extra `plot`.")]
