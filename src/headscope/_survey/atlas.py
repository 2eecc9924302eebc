"""What a survey says beyond statistics: syntax, labels, examples, distributions. Which there are, and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headscope._survey.beside import beside_name, read_beside
from headscope._survey.examples import examples_table
from headscope._survey.labelling import Felt, labels_table
from headscope._survey.lines import Read, Reading, lines_table
from headscope._survey.pairs import KEPT, SPARE, merged
from headscope._survey.relations import relations_table
from headscope._survey.shapes import distributions_table
from headscope._survey.syntax import syntax_table
from headscope._survey.table import parquet_bytes

if TYPE_CHECKING:
    from headscope._survey.corpus import Corpus
    from headscope._survey.folder import Folder
    from headscope._survey.settings import Settings


def kinds_of(corpus: Corpus, chosen: Settings) -> tuple[str, ...]:
    """The kinds of files that each part has beside it."""
    syntax = ("syntax",) if corpus.kind == "conllu" else ()
    return syntax if kept_pairs(chosen) is None else (*syntax, "acts", "pairs", "shapes", "texts")


def kept_pairs(chosen: Settings) -> int | None:
    """How many of the strongest pairs are kept of each head; None without labels and examples."""
    return max(KEPT, SPARE * chosen.examples) if chosen.labels or chosen.examples else None


def write_atlas(
    folder: Folder,
    corpus: Corpus,
    chosen: Settings,
    heads: Sequence[tuple[int, int]],
    parts: Sequence[Mapping[str, Any]],
    read: Callable[[Iterator[Reading]], Iterator[tuple[Reading, Read]]],
    felt: Felt | None,
) -> list[str]:
    """Write the tables of the whole survey; the names of all files that the manifest is to list.

    Args:
        read: `Workers.read`, which runs windows again.
        felt: what silencing the heads changes; None if it wasn't measured.
    """
    kinds = kinds_of(corpus, chosen)
    files = [beside_name(kind, part) for part in range(len(parts)) for kind in kinds]
    documents = [int(part["documents"]) for part in parts]
    if "syntax" in kinds:
        folder.write("syntax.parquet", parquet_bytes(syntax_table(folder.path, documents, heads)))
        folder.write("relations.parquet", parquet_bytes(relations_table(folder.path, documents, heads)))
        files += ["syntax.parquet", "relations.parquet"]
    most = kept_pairs(chosen)
    if most is None:
        return files
    distributions = distributions_table(read_beside(folder.path, "shapes", len(parts)), heads)
    folder.write("distributions.parquet", parquet_bytes(distributions))
    files.append("distributions.parquet")
    pairs = merged(read_beside(folder.path, "pairs", len(parts)), documents, most)
    labels = labels_table(folder.path, documents, heads, pairs, syntax="syntax" in kinds, felt=felt)
    if chosen.labels:
        folder.write("labels.parquet", parquet_bytes(labels))
        files.append("labels.parquet")
    if chosen.examples:
        examples = examples_table(folder.path, documents, heads, pairs, labels, chosen.examples)
        folder.write("examples.parquet", parquet_bytes(examples))
        lines = lines_table(folder.path, documents, heads, examples, read)
        folder.write("lines.parquet", parquet_bytes(lines))
        files += ["examples.parquet", "lines.parquet"]
    return files
