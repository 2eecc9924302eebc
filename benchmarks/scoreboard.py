"""The scoreboard: headscope and its peers in one table.

    python benchmarks/scoreboard.py --peers FOLDER --json results.json
    python benchmarks/scoreboard.py --peers FOLDER --json results.json --resume       # continue an interrupted run
    python benchmarks/scoreboard.py --peers FOLDER --json smoke.json --quick          # tiny sizes, some minutes
    python benchmarks/scoreboard_pages.py results.json                                # the docs and READMEs show it

Run it with the Python that has headscope, torch, transformers, pyarrow, playwright, onnx and onnxruntime. Peers get
environments of their own under FOLDER, from the pins in benchmarks/peers, and keep them. Results are written after
every section. benchmarks/README.md says what each row measures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from captor import CantError, Captor, last_line
from decoder import snapshot
from ground import WORDS, headscope
from measure import process
from peers.calls import HEAD, LAYER, OF_DECODER, OF_LAYERS, ONE_HEAD, SHAPES
from scoreboard_table import TOOLS, YARDSTICK, figures, table
from surroundings import environments, machine, say, versions

HERE = Path(__file__).parent
NO_FUNCTION = "The tool has no function for this."
NO_BERT = {
    "attnread": "It reads models with q_proj, k_proj and v_proj, and GPT-2; not BERT.",
    "neuronscope-cli": "It loads decoders by name; BERT ends in “Please use HookedEncoder to load BERT-style models”.",
}
ELSEWHERE = "Not measured on this model; see the rows on BERT."
NOT_HERE = {
    "decoder head": dict.fromkeys(("torchlens", "bertviz", "torchinfo"), ELSEWHERE)
    | {"neuronscope-cli": "It gives numbers about a layer's attention, not a head's weights."},
    "decoder layers": dict.fromkeys(
        ("transformers", "TransformerLens", "torchlens", "bertviz", "torchinfo"), NO_FUNCTION
    )
    | {"attnread": "It gives weights, not numbers about them."},
    "decoder": dict.fromkeys(("torchlens", "bertviz", "torchinfo"), ELSEWHERE)
    | {"neuronscope-cli": "It gives numbers about a layer's attention, not a head's weights."},
}
"""Why tools have no figure in the rows on decoders."""
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
TINY = {"hidden_size": 768, "num_hidden_layers": 2, "intermediate_size": 768}
CAPTURES = [
    ("headscope", "everything"),
    ("headscope", "weights alone"),
    ("transformers", "weights alone"),
    ("TransformerLens", "everything"),
    ("TransformerLens", "weights alone"),
    ("torchlens", "everything"),
    ("torchlens", "weights alone"),
    ("bertviz", "neuron view"),
    (YARDSTICK, "own forward"),
]
OF_GPT2 = [
    ("headscope", "weights alone"),
    ("transformers", "weights alone"),
    ("TransformerLens", "weights alone"),
    ("attnread", "weights alone"),
    (YARDSTICK, "own forward"),
]
PAGES = {"head_view": "head view", "model_view": "model view"}


@dataclass(frozen=True)
class Sizes:
    """Rounds of each measurement: {tokens: rounds} where sizes differ."""

    gpt2: dict[str, int]
    decoders: dict[int, int]
    large: dict[str, int]
    base: dict[str, int]
    starts: int
    captures: dict[int, int]
    peers_at_most: dict[int, int]
    pages: dict[int, int]
    peer_pages: dict[int, int]
    encoder: tuple[str, ...]
    long: dict[int, int]
    statistics: dict[int, int]
    plain: dict[int, int]
    surveys: int
    survey: tuple[str, ...]
    patience: int


FULL = Sizes(
    gpt2={},
    decoders={128: 5, 512: 3},
    large=LARGE,
    base={},
    starts=5,
    captures={128: 7, 512: 5, 2048: 3},
    peers_at_most={128: 7, 512: 3, 2048: 2},
    pages={64: 3, 128: 3, 512: 3},
    peer_pages={64: 3, 128: 2, 512: 1},
    encoder=("--layers", "12", "--rounds", "7"),
    long={8192: 2},
    statistics={512: 5, 8192: 3},
    plain={512: 5, 8192: 1},
    surveys=3,
    survey=("--windows", "4"),
    patience=240,
)
QUICK = Sizes(
    gpt2={"n_layer": 2},
    decoders={16: 1},
    large=TINY,
    base=TINY,
    starts=1,
    captures={16: 1},
    peers_at_most={16: 1},
    pages={16: 1},
    peer_pages={16: 1},
    encoder=("--layers", "1", "--rounds", "1"),
    long={32: 1},
    statistics={64: 1},
    plain={64: 1},
    surveys=1,
    survey=("--layers", "2", "--hidden", "128", "--vocab", "4096", "--length", "64", "--windows", "2"),
    patience=120,
)


def fewer(sizes: Sizes, most: int) -> Sizes:
    """The same with at most so many rounds."""

    def limited(rounds: Any) -> Any:
        return (
            {tokens: min(count, most) for tokens, count in rounds.items()}
            if isinstance(rounds, dict)
            else min(rounds, most)
        )

    names = ("starts", "captures", "decoders", "peers_at_most", "pages", "peer_pages", "statistics", "plain", "surveys")
    return replace(sizes, **{name: limited(getattr(sizes, name)) for name in names})


@dataclass
class Board:
    """A run: its tools, its sizes and the report that grows."""

    pythons: dict[str, str]
    failed: dict[str, str]
    sizes: Sizes
    folder: Path
    report: dict[str, Any]

    def row(self, key: str, task: str, unit: str, *, more_is_better: bool = False) -> dict[str, Any]:
        """A new row of the report."""
        row: dict[str, Any] = {"task": task, "unit": unit, "more_is_better": more_is_better, "cells": []}
        self.report["rows"][key] = row
        return row

    def checkpoint(self, name: str, config: dict[str, int]) -> Path:
        """A BertModel with random weights, made once in a separate process, so that this one stays small."""
        home = self.folder / name
        if not (home / "tokenizer_config.json").exists():
            code = f"from pathlib import Path; from ground import make; make(Path({str(home)!r}), **{config!r})"
            process([sys.executable, "-W", "ignore", "-c", code], {"PYTHONPATH": str(HERE)})
        return home


def add(row: dict[str, Any], tool: str, way: str, raw: list[float], no: str | None = None) -> None:
    """A cell: its figures, or the reason for a 'no'."""
    row["cells"].append({"tool": tool, "way": way, "no": no} if no else {"tool": tool, "way": way, "raw": raw})


def add_missing(row: dict[str, Any], reasons: dict[str, str] | None = None) -> None:
    """A 'no' for every tool that has no cell, with its reason in this row or the general one."""
    for tool in TOOLS:
        if all(cell["tool"] != tool for cell in row["cells"]):
            add(row, tool, "", [], (reasons or NO_BERT).get(tool, NO_FUNCTION))


def starts(board: Board) -> None:
    """Whole processes from nothing to the shapes of every parameter, and to one head's weights."""
    text = " ".join(WORDS)  # 12 tokens with [CLS] and [SEP]
    folder = str(board.checkpoint("large", board.sizes.large))
    commands = {"headscope": headscope("shapes", folder)}
    commands |= {tool: [board.pythons.get(tool, ""), "-c", code.format(folder=folder)] for tool, code in SHAPES.items()}
    raced(board, "shapes", "cold start to every shape, BERT-large", commands, memory=True)
    folder = str(board.checkpoint("base", board.sizes.base))
    commands = {"headscope": headscope("attend", folder, text, "--heads", f"{LAYER}.{HEAD}")}
    for tool, code in ONE_HEAD.items():
        filled = code.format(folder=folder, text=text, layer=LAYER, head=HEAD)
        commands[tool] = [board.pythons.get(tool, ""), "-c", filled]
    raced(board, "one head", "cold start to one head, BERT-base, 12 tokens", commands, memory=False)


def raced(
    board: Board,
    key: str,
    task: str,
    commands: dict[str, list[str]],
    *,
    memory: bool,
    environment: dict[str, str] | None = None,
    rest: dict[str, str] | None = None,
) -> None:
    """The commands, alternating round by round, after one run of each."""
    seconds: dict[str, list[float]] = {tool: [] for tool in commands}
    peaks: dict[str, list[float]] = {tool: [] for tool in commands}
    no = {tool: reason for tool, reason in board.failed.items() if tool in commands}
    for at in range(-1, board.sizes.starts):
        for tool in (tool for tool in commands if tool not in no):
            try:
                run = process(commands[tool], environment)
            except RuntimeError as error:
                no[tool] = last_line(str(error))
                continue
            if at >= 0:
                seconds[tool].append(run.seconds)
                peaks[tool].append(run.megabytes)
        say(f"{key}: round {at + 1} of {board.sizes.starts}")
    rows = [(board.row(key, task, "s"), seconds)]
    if memory:
        rows.append((board.row(f"{key} memory", "the same, peak memory", "MB"), peaks))
    for row, found in rows:
        for tool in commands:
            add(row, tool, "", found[tool], no.get(tool))
        add_missing(row, rest)


def captures(board: Board) -> None:
    """Every head of one text of BERT-base's shape."""
    folder = board.checkpoint("long", {**board.sizes.base, "max_position_embeddings": 2048})
    captured(board, "capture", "BERT-base", folder, CAPTURES, board.sizes.captures)


def decoders(board: Board) -> None:
    """One head, a summary of every layer, and every head of a model of GPT-2's shape."""
    folder = board.folder / "gpt2"
    make = f"make_gpt2(Path({str(folder)!r}), **{board.sizes.gpt2!r})"
    code = f"from pathlib import Path; from decoder import make_gpt2; {make}"
    process([sys.executable, "-W", "ignore", "-c", code], {"PYTHONPATH": str(HERE)})
    filled = {"folder": str(snapshot(folder)), "text": "twelve token", "layer": LAYER, "head": HEAD}
    for key, task, codes in (
        ("decoder head", "cold start to one head, GPT-2's shape, 12 tokens", OF_DECODER),
        ("decoder layers", "cold start to numbers about each layer's attention, GPT-2's shape", OF_LAYERS),
    ):
        commands = {tool: [board.pythons.get(tool, ""), "-c", code.format(**filled)] for tool, code in codes.items()}
        raced(board, key, task, commands, memory=False, environment={"HF_HOME": str(folder)}, rest=NOT_HERE[key])
    captured(
        board, "decoder", "GPT-2's shape", snapshot(folder), OF_GPT2, board.sizes.decoders, rest=NOT_HERE["decoder"]
    )


def captured(
    board: Board,
    key: str,
    model: str,
    folder: Path,
    which: list[tuple[str, str]],
    sizes: dict[int, int],
    rest: dict[str, str] | None = None,
) -> None:
    """Every head of one text, in a process per tool; the tools alternate round by round."""
    captors: dict[str, Captor] = {}
    gone = dict(board.failed)
    for tool in dict.fromkeys(tool for tool, _ in which if tool != YARDSTICK and tool not in gone):
        try:
            captors[tool] = Captor(board.pythons[tool], tool, folder, board.sizes.patience)
        except CantError as error:  # noqa: PERF203 - each on its own
            gone[tool] = str(error)
    try:
        for tokens, count in sizes.items():
            capture_rows(board, captors, gone, (key, model, which, rest), tokens, count)
    finally:
        for captor in captors.values():
            captor.close()


def capture_rows(
    board: Board,
    captors: dict[str, Captor],
    gone: dict[str, str],
    task: tuple[str, str, list[tuple[str, str]], dict[str, str] | None],
    tokens: int,
    count: int,
) -> None:
    """Time and peak memory at one length. The first run, which warms up, is the one whose memory is measured."""
    key, model, ways, rest = task
    peaks: dict[tuple[str, str], list[float]] = {which: [] for which in ways}
    seconds: dict[tuple[str, str], list[float]] = {which: [] for which in ways}
    no = {which: gone[which[0]] for which in ways if which[0] in gone}
    for at in range(-1, count):
        for which in ways:
            tool, way = which
            home = "headscope" if tool == YARDSTICK else tool
            peer = home not in ("headscope", "transformers")
            if which in no or (peer and at >= board.sizes.peers_at_most.get(tokens, count)):
                continue
            try:
                figure = captors[home].ask("peak" if at < 0 else "time", way, tokens)
            except CantError as error:
                no[which] = str(error)
                continue
            (peaks if at < 0 else seconds)[which].append(figure / 1e6 if at < 0 else figure)
        say(f"{key}, {tokens} tokens: round {at + 1} of {count}")
    for name, unit, measured in (("time", "s", seconds), ("peak memory", "MB", peaks)):
        row = board.row(f"{key} {tokens} {name}", f"capture of every head, {model}, {tokens:,} tokens: {name}", unit)
        for which in ways:
            add(row, *which, measured[which], no.get(which))
        add_missing(row, rest)


def told(command: list[str], patience: int) -> Any:
    """The JSON that a benchmark of this folder writes.

    Raises:
        CantError: it failed, or took longer than the patience.
    """
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "found.json"
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / command[0]), *command[1:], "--json", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, errors = child.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with its browser and whatever a peer still runs
            child.communicate()
            raise CantError(f"not done after {patience} s") from None
        if child.returncode:
            raise CantError(last_line(errors))
        return json.loads(file.read_text(encoding="utf-8"))


def pages(board: Board) -> None:
    """Size of a page and the seconds until its first picture is there, in Chromium."""
    sizes: dict[int, dict[tuple[str, str], list[float]]] = {}
    paints: dict[int, dict[tuple[str, str], list[float]]] = {}
    no: dict[tuple[int, str, str], str] = {}
    ways = [("headscope", ""), *(("bertviz", way) for way in PAGES.values())]
    for tokens in board.sizes.pages:
        sizes[tokens], paints[tokens] = ({which: [] for which in ways} for _ in range(2))
    for at in range(max(board.sizes.pages.values())):
        for tokens, count in board.sizes.pages.items():
            for tool, most in (("headscope", count), ("bertviz", board.sizes.peer_pages[tokens])):
                chosen = [which for which in ways if which[0] == tool and (tokens, *which) not in no]
                if at >= most or not chosen:
                    continue
                command = ["page.py", "--tokens", str(tokens)]
                if tool == "bertviz":
                    command = ["page.py", "--tokens", "--bertviz", board.pythons.get(tool, "")]
                    command += ["--bertviz-tokens", str(tokens)]
                try:
                    if tool in board.failed:
                        raise CantError(board.failed[tool])
                    rows = told(command, board.sizes.patience)["rows"]
                except CantError as error:
                    no |= {(tokens, *which): str(error) for which in chosen}
                    continue
                for found in rows:
                    which = (tool, PAGES.get(found["what"].removeprefix("bertviz "), ""))
                    sizes[tokens][which].append(found["MB"])
                    if found["first picture, s"] is not None:
                        paints[tokens][which].append(found["first picture, s"])
            say(f"page, {tokens} tokens: round {at + 1} of {count}")
    for name, unit, measured in (("size", "MB", sizes), ("first picture", "s", paints)):
        for tokens in board.sizes.pages:
            task = f"page of every head, BERT-base's shape, {tokens} tokens: {name}"
            row = board.row(f"page {tokens} {name}", task, unit)
            for which in ways:
                raw = measured[tokens][which]
                missing = no.get((tokens, *which), "Its page never drew anything." if not raw else "")
                add(row, *which, raw, None if raw else missing)
            add_missing(row)


def beside_forward(board: Board, who: str, lengths: dict[int, int], task: str, own: str) -> None:
    """A capture and the forward pass that it records, of benchmarks/capture.py: alternating in one process."""
    for tokens, count in lengths.items():
        row = board.row(f"{who} {tokens}", task.format(tokens=tokens), "s")
        command = ["capture.py", "--only", who, "--tokens", str(tokens), "--rounds", str(count)]
        try:
            found = {one["way"]: one["raw"] for one in told(command, 8 * board.sizes.patience)}
        except CantError as error:
            add(row, "headscope", "", [], str(error))
        else:
            add(row, "headscope", "", next(raw for way, raw in found.items() if way.startswith("headscope")))
            add(row, YARDSTICK, "own forward", found[own])
        add_missing(row)
        say(f"{who}, {tokens} tokens: {count} rounds")


def encoder(board: Board) -> None:
    """headscope's own forward pass in NumPy, with the trace of every head; one thread, processor time."""
    found: dict[int, dict[str, list[float]]] = {}
    for one in told(["encoder.py", *board.sizes.encoder], 8 * board.sizes.patience):
        found.setdefault(one["tokens"], {})[one["way"]] = one["raw"]
    for tokens, ways in found.items():
        task = f"NumPy encoder with its trace, BERT-base, {tokens} tokens: time of one core"
        row = board.row(f"encoder {tokens}", task, "s")
        add(row, "headscope", "", ways["headscope"])
        add(row, "transformers", "eager", ways["transformers eager"])
        add(row, YARDSTICK, "ONNX Runtime", ways["ONNX Runtime"])
        add_missing(row)
    say("encoder")


def long(board: Board) -> None:
    """A long text, whose maps no other tool keeps."""
    task = "capture of every head, BERT-base, {tokens:,} tokens: time"
    beside_forward(board, "long", board.sizes.long, task, "sdpa, the model's own forward")


def layer_statistics(board: Board) -> None:
    """All statistics of a layer, compared with one call of SDPA on the same tensors and with plain row blocks."""
    for tokens, count in board.sizes.statistics.items():
        seconds: dict[str, list[float]] = {"statistics_s": [], "sdpa_s": [], "plain_s": []}
        for at in range(count):
            command = ["head_statistics.py", "--tokens", str(tokens), "--rounds", "1"]
            (result,) = told(
                command + (["--plain"] if at < board.sizes.plain[tokens] else []), 3 * board.sizes.patience
            )
            for key, raw in seconds.items():
                raw += [result[key]] if key in result else []
            say(f"statistics, {tokens} tokens: round {at + 1} of {count}")
        row = board.row(f"statistics {tokens}", f"all statistics of a layer of 12 heads, {tokens:,} tokens", "s")
        add(row, "headscope", "", seconds["statistics_s"])
        add(row, YARDSTICK, "one SDPA call", seconds["sdpa_s"])
        add(row, YARDSTICK, "row blocks, NumPy", seconds["plain_s"])
        add_missing(row)


def survey(board: Board) -> None:
    """Tokens per second over documents, for every statistic of every head."""
    rates: dict[str, list[float]] = {"survey": [], "usual": [], "forward": []}
    for at in range(board.sizes.surveys):
        result = told(["survey.py", "--rounds", "1", *board.sizes.survey], 3 * board.sizes.patience)
        for key, raw in rates.items():
            raw.append(result[f"{key}_tokens_per_second"])
        say(f"survey: round {at + 1} of {board.sizes.surveys}")
    row = board.row("survey", "survey of windows of 512 tokens, BERT-base", "tokens/s", more_is_better=True)
    add(row, "headscope", "", rates["survey"])
    add(row, "transformers", "", rates["usual"])
    add(row, YARDSTICK, "own forward", rates["forward"])
    add_missing(row)


SECTIONS: dict[str, Callable[[Board], None]] = {
    "starts": starts,
    "captures": captures,
    "decoders": decoders,
    "encoder": encoder,
    "long": long,
    "pages": pages,
    "statistics": layer_statistics,
    "survey": survey,
}


def write(report: dict[str, Any], asked: argparse.Namespace) -> None:
    """The report with its figures, and the table."""
    if asked.json:
        full = {**report, "rows": {key: figures(row) for key, row in report["rows"].items()}}
        asked.json.write_text(json.dumps(full, indent=1) + "\n", encoding="utf-8")
    if asked.markdown:
        asked.markdown.write_text(table(report), encoding="utf-8")


def main() -> None:
    """Run the remaining sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="where the peers' environments are, or will be")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--resume", action="store_true", help="keep the sections that the file of --json has")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="these sections")
    parser.add_argument("--json", type=Path, help="everything: versions, machine, rounds, raw figures")
    parser.add_argument("--markdown", type=Path, help="the table")
    parser.add_argument("--rounds", type=int, default=100, help="at most so many rounds of each measurement")
    options = parser.parse_args()
    if options.resume and not options.json:
        parser.error("--resume needs the file of --json")
    os.environ["HF_HUB_OFFLINE"] = "1"
    pythons, failed = environments(options.peers)
    report: dict[str, Any] = {
        "quick": options.quick,
        "machine": machine(),
        "versions": {tool: versions(python) for tool, python in pythons.items()},
        "rows": {},
        "sections_left": list(SECTIONS),
        "section_seconds": {},
    }
    if options.resume and options.json.exists():
        earlier = json.loads(options.json.read_text(encoding="utf-8"))
        for key in ("quick", "versions"):
            if earlier[key] != report[key]:
                parser.error(f"{options.json} was measured with another {key}: {earlier[key]}, not {report[key]}")
        report = earlier
    with tempfile.TemporaryDirectory() as made:
        sizes = fewer(QUICK if options.quick else FULL, options.rounds)
        board = Board(pythons, failed, sizes, Path(made), report)
        for section in [name for name in options.only if name in report["sections_left"]]:
            say(f"{section}, load {os.getloadavg()[0]:.1f}")
            began = time.monotonic()
            SECTIONS[section](board)
            report["section_seconds"][section] = round(time.monotonic() - began, 1)
            report["sections_left"].remove(section)
            write(report, options)
    write(report, options)
    print(table(report))


if __name__ == "__main__":
    main()
