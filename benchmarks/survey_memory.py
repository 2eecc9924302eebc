"""Peak memory of a survey with labels and examples, over corpora of several sizes.

    python benchmarks/survey_memory.py --megabytes 10,100 --json memory.json
    python benchmarks/survey_memory.py --documents 1000,100000 --workers 2

A BERT of one layer with two heads, random weights, reads made-up documents of 5 kB in one file of JSON lines. Each
corpus is surveyed in a process of its own, which writes down its resident memory after every part, and its peak at the
end, the site included. Memory should not grow with the corpus: aim, the largest peak at most 1.1 times the smallest.
Needs Linux, for /proc.

With --documents, the bundled model reads so many documents of one sentence on Ray, with all statistics and no labels:
after the first part, one in the middle and the last, MB and processor seconds of this process and of each worker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORDS = 4000
"""Different words."""

DOCUMENT = 5000
"""Characters of a document."""


def words() -> list[str]:
    """Made-up words of 3 to 12 letters."""
    drawn = random.Random(0)
    return ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(3, 12))) for _ in range(WORDS)]


def write_corpus(path: Path, megabytes: int) -> None:
    """Documents of sentences of ten words, as JSON lines."""
    drawn, vocabulary = random.Random(1), words()
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1_000_000:
            text = ""
            while len(text) < DOCUMENT:
                text += " ".join(drawn.choices(vocabulary, k=10)) + ". "
            file.write(json.dumps({"text": text}) + "\n")
            written += len(text)


SHORT = (
    "the",
    "a",
    "cat",
    "dog",
    "queen",
    "king",
    "little",
    "old",
    "went",
    "came",
    "said",
    "saw",
    "and",
    "but",
    "to",
    "of",
)
"""Words of the short documents."""


def write_short(path: Path, documents: int) -> None:
    """Documents of 5 to 15 words of English, as JSON lines."""
    drawn = random.Random(2)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(documents):
            file.write(json.dumps({"text": " ".join(drawn.choices(SHORT, k=drawn.randint(5, 15)))}) + "\n")


def write_model(folder: Path) -> None:
    """A tiny BERT whose vocabulary has every word."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *dict.fromkeys(words())]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=512,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)


def status(name: str, process: int | str = "self") -> float:
    """A field of a process's /proc status, in MB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def workers() -> list[int]:
    """The processes of Ray's actors that run a survey."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"ray::Worker"):
                found.append(int(path.parent.name))
    return found


def seconds(process: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def on_ray(count: int, corpus: str, out: str) -> dict[str, Any]:
    """Survey with so many workers: peaks and processor time after each part, files and their bytes."""
    import ray

    import headscope as hs

    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    every: list[dict[str, Any]] = []

    def watch(tally: Any) -> None:
        if tally.parts > len(every):
            actors = workers()
            every.append(
                {
                    "documents": tally.documents,
                    "tokens": tally.tokens,
                    "here": [round(status("VmRSS"), 1), round(time.process_time(), 1)],
                    "workers": [[round(status("VmHWM", one), 1), round(seconds(one), 1)] for one in actors],
                }
            )

    started = time.perf_counter()
    result = hs.survey("-", corpus, out=out, ray=True, workers=count, report=False, progress=watch)
    wall = time.perf_counter() - started
    files = [path for path in result.folder.rglob("*") if path.is_file()]
    return {
        "counts": result.manifest["counts"],
        "wall_seconds": round(wall, 1),
        "peak": round(status("VmHWM"), 1),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "parts": [every[at] for at in sorted({0, len(every) // 2, len(every) - 1})],
    }


def survey(model: str, corpus: str, out: str) -> dict[str, Any]:
    """Survey in this process: its resident memory after each part, its peak, and its processor time."""
    import headscope as hs

    resident: list[float] = []

    def watch(tally: Any) -> None:
        if tally.parts > len(resident):
            resident.append(round(status("VmRSS"), 1))

    started = time.process_time()
    result = hs.survey(
        model, corpus, out=out, labels=True, examples=10, statistics=["entropy", "first"], threads=1, progress=watch
    )
    counts = result.manifest["counts"]
    return {
        "counts": counts,
        "parts": len(resident),
        "after_first_part": resident[0],
        "after_last_part": resident[-1],
        "parts_peak": max(resident),
        "peak": round(status("VmHWM"), 1),
        "processor_seconds": round(time.process_time() - started, 1),
        "every": resident[:: max(1, len(resident) // 20)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="10,100", help="sizes of the corpora")
    parser.add_argument("--documents", help="numbers of short documents, instead of sizes")
    parser.add_argument("--workers", type=int, default=2, help="of Ray, for --documents")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "CORPUS", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model, corpus, out = options.one
        print(json.dumps(on_ray(options.workers, corpus, out) if options.documents else survey(model, corpus, out)))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        (folder / "model").mkdir()
        write_model(folder / "model")
        more = ["--documents", options.documents, "--workers", str(options.workers)] if options.documents else []
        write, unit = (write_short, "documents") if options.documents else (write_corpus, "MB")
        for size in map(int, (options.documents or options.megabytes).split(",")):
            corpus = folder / f"{size}.jsonl"
            write(corpus, size)
            command = [sys.executable, __file__, *more, "--one", str(folder / "model"), str(corpus)]
            done = subprocess.run([*command, str(folder / f"out-{size}")], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            results[str(size)] = json.loads(done.stdout.splitlines()[-1])
            print(size, f"{unit}:", json.dumps(results[str(size)]), flush=True)
            corpus.unlink()
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    peaks = [result["peak"] for result in results.values()]
    print(f"peaks {peaks} MB: largest over smallest {max(peaks) / min(peaks):.3f} (aim: 1.1)", file=sys.stderr)


if __name__ == "__main__":
    main()
