"""The size of the house: lines by kind, files, circles of imports, long functions, options, and the moves of commands.

    python benchmarks/house.py [--json] [--without-moves]

None of it depends on the machine's speed, so that two commits can be compared on any machine. How lines and imports are
counted is in house_source.py, how moves are in house_moves.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from house_moves import COMMANDS, run
from house_source import KINDS, LONGEST, How, Package, circles

SOURCE = Path(__file__).parents[1] / "src" / "headscope"

RULES: dict[str, tuple[tuple[How, ...], bool]] = {
    "imports at the top of files": (("top",), False),
    "late ones, too": (("top", "late", "face"), False),
    "and those for types": (("top", "late", "face", "type"), False),
    "and packages as files": (("top", "late", "face", "type"), True),
}
"""What counts as an import -> its kinds, and whether a file's own packages count as files."""

TYPES = "and those for types"
"""The rule whose circles are listed with what ties them."""


def measured(*, moves: bool) -> dict[str, Any]:
    """All figures, as --json prints them."""
    package = Package.read(SOURCE)
    parts = package.parts()
    total = {name: sum(part[name] for part in parts.values()) for name in ("files", *KINDS)}
    return {
        "parts": {name: dict(part) for name, part in parts.items()},
        "total": {**total, "lines": sum(total[kind] for kind in KINDS)},
        "circles": {rule: circles_by(package, rule) for rule in RULES},
        "long_functions": [one._asdict() for one in package.long_functions()],
        "options": options(),
        "moves": {name: run(name)._asdict() for name in COMMANDS} if moves else {},
    }


def circles_by(package: Package, rule: str) -> dict[str, Any]:
    """The circles by a rule of RULES, with `@late` methods and without."""
    hows, packages = RULES[rule]
    plain = tuple(how for how in hows if how != "face")
    return {
        "without_late_methods": [len(one) for one in circles(package.edges(plain, packages=packages))],
        "circles": [
            {"files": list(map(package.short, one)), "ties": package.ties(one, hows, packages=packages)}
            for one in circles(package.edges(hows, packages=packages))
        ],
    }


def options() -> dict[str, int]:
    """The number of options of each command, hidden ones, those of `headscope` itself and --help left out."""
    from typer.main import get_command

    from headscope.cli import app

    group: Any = get_command(app)
    context = group.context_class(group, info_name="headscope")
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {
        name: sum(one.param_type_name == "option" and not one.hidden for one in command.params)
        for name, command in commands.items()
    }


def sizes(counts: list[int]) -> str:
    """The sizes of circles in words: `80, 4 and 3 files`."""
    names = [f"{count:,}" for count in counts]
    return f"{' and '.join([', '.join(names[:-1])] * (len(names) > 1) + names[-1:])} files" if names else "none"


def lines_table(figures: dict[str, Any]) -> Table:
    """Files and lines by kind of each part."""
    table = Table("part", title="files and lines", title_justify="left", show_footer=True)
    total = figures["total"]
    table.columns[0].footer = "total"
    for name in ("files", "lines", *KINDS):
        table.add_column(name, f"{total[name]:,}", justify="right")
    for name, part in figures["parts"].items():
        lines = sum(part[kind] for kind in KINDS)
        table.add_row(name, *(f"{count:,}" for count in (part["files"], lines, *(part[kind] for kind in KINDS))))
    return table


def circles_table(figures: dict[str, Any]) -> Table:
    """The sizes of circles by each rule."""
    table = Table("counted", "circles", "without @late methods", title="circles of imports", title_justify="left")
    for rule, of in figures["circles"].items():
        table.add_row(rule, sizes([len(one["files"]) for one in of["circles"]]), sizes(of["without_late_methods"]))
    return table


def moves_table(figures: dict[str, Any]) -> Table:
    """Files and moves of each command."""
    table = Table("command", title="files and moves of commands", title_justify="left")
    for name in ("files", "moves"):
        table.add_column(name, justify="right")
    for name, of in figures["moves"].items():
        table.add_row(COMMANDS[name], f"{of['files']:,}", f"{of['moves']:,}")
    return table


def show(figures: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    console.print(lines_table(figures), circles_table(figures), highlight=False)
    for circle in figures["circles"][TYPES]["circles"]:
        console.print(f"a circle of {len(circle['files'])} files:", *circle["ties"], sep="\n  ", highlight=False)
    long, per_command = figures["long_functions"], figures["options"]
    console.print(f"\nfunctions of more than {LONGEST} lines: {len(long)}", highlight=False)
    for one in long[:5]:
        console.print(f"  {one['lines']} {one['file']}:{one['line']} {one['name']}", highlight=False)
    console.print(f"\noptions over all commands: {sum(per_command.values())}", highlight=False)
    console.print("  " + ", ".join(f"{name} {count}" for name, count in per_command.items()), highlight=False)
    if figures["moves"]:
        console.print("", moves_table(figures), highlight=False)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="The size of the house, in figures.")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument(
        "--without-moves", action="store_true", help="run no commands: a second instead of half a minute"
    )
    given = parser.parse_args()
    figures = measured(moves=not given.without_moves)
    if given.json:
        print(json.dumps(figures, indent=1, ensure_ascii=False))
    else:
        show(figures, Console(width=120, markup=False))


if __name__ == "__main__":
    main()
