"""The pages that show the scoreboard: all of their figures come from one saved run.

    python benchmarks/scoreboard_pages.py results.json      # of a whole run of scoreboard.py

It keeps the run as benchmarks/scoreboard.json and writes the table of docs/benchmarks.md, the lines of the READMEs and
the picture that they show.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scoreboard_table import figures, shown, table

ROOT = Path(__file__).parents[1]
RUN, PICTURE, TABLE = Path("benchmarks/scoreboard.json"), Path("docs/images/scoreboard.svg"), Path("docs/benchmarks.md")
BEGIN, END = "<!-- scoreboard -->", "<!-- /scoreboard -->"
SUMMARIES = (
    ("shapes", "", "transformers", ""),
    ("one head", "", "transformers", ""),
    ("capture 128 time", "weights alone", "transformers", "weights alone"),
    ("capture 512 peak memory", "weights alone", "transformers", "weights alone"),
    ("survey", "", "transformers", ""),
)
"""Row, way of headscope, peer and its way, of each line in a README."""
LINES = {
    "README.md": (
        "every shape of BERT-large, from nothing: {mine}; transformers {ratio}",
        "one head of BERT-base for a sentence, from nothing: {mine}; transformers {ratio}",
        "every head of a live BERT-base, 128 tokens: {mine}; transformers' eager attention {ratio}",
        "the memory of that at 512 tokens: {mine}; transformers' eager attention {ratio}",
        "all statistics of all heads over a corpus: {mine}; transformers and the same formulas {ratio} as long",
    ),
    "README.ja.md": (
        "BERT-large の全パラメータの形状（起動から）: {mine}。transformers は {ratio}",
        "BERT-base の 1 つのヘッド、1 文（起動から）: {mine}。transformers は {ratio}",
        "メモリ上の BERT-base の全ヘッド、128 トークン: {mine}。transformers の eager アテンションは {ratio}",
        "同じ処理のメモリ、512 トークン: {mine}。transformers の eager アテンションは {ratio}",
        "コーパス全体での全ヘッドの全統計量: {mine}。transformers で同じ式を計算すると、所要時間は {ratio}",
    ),
    "README.zh.md": (
        "BERT-large 全部参数的形状（从启动算起）：{mine}；transformers 为 {ratio}",
        "BERT-base 的一个头、一个句子（从启动算起）：{mine}；transformers 为 {ratio}",
        "内存中的 BERT-base 的所有头，128 个词元：{mine}；transformers 的 eager 注意力为 {ratio}",
        "同一任务的内存，512 个词元：{mine}；transformers 的 eager 注意力为 {ratio}",
        "在语料库上计算所有头的全部统计量：{mine}；用 transformers 加同样的公式，用时为 {ratio}",
    ),
}


def lines(report: dict[str, Any], page: str) -> str:
    """The lines of a README: headscope's figure, and how many times as much its peer needs."""
    texts = []
    for (key, way, peer, its_way), line in zip(SUMMARIES, LINES[page], strict=True):
        row = figures(report["rows"][key])
        mine = next(cell for cell in row["cells"] if (cell["tool"], cell["way"]) == ("headscope", way))
        other = next(cell for cell in row["cells"] if (cell["tool"], cell["way"]) == (peer, its_way))
        ratio = f"{shown(other['ratio']['median'])}×"
        texts.append("- " + line.format(mine=f"{shown(mine['median'])} {row['unit']}", ratio=ratio))
    return "\n".join(texts) + "\n"


def put(markdown: str, page: str) -> str:
    """The page with this between its markers.

    Raises:
        ValueError: the markers aren't there once each, in that order.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page has no place for the scoreboard: {BEGIN} … {END}, once")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{markdown}{END}{rest.split(END)[1]}"


def publish(report: dict[str, Any], root: Path) -> None:
    """Write the run, the table, the lines and the picture.

    Raises:
        ValueError: the run is not a whole one.
    """
    from scoreboard_picture import draw

    if report["quick"] or report["sections_left"]:
        raise ValueError("this run is a smoke run, or not finished: --resume finishes it")
    (root / RUN).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    texts = {str(TABLE): table(report), **{page: lines(report, page) for page in LINES}}
    for page, text in texts.items():
        (root / page).write_text(put(text, (root / page).read_text(encoding="utf-8")), encoding="utf-8")
    draw(report, root / PICTURE)


if __name__ == "__main__":
    publish(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), ROOT)
