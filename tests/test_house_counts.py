"""The counts of `benchmarks/house.py`: a made-up package counted by hand, circles against reachability, real files."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headscope

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from house_moves import moves_of, run
from house_source import KINDS, Package, circles, knots

FILES = {
    "__init__.py": '"""The lodge."""\n\nNAME = "lodge"\n"""Below an assignment."""\n',
    "hall.py": (
        '"""The hall.\n\nTwo doors.\n"""\n\n'  # docstring 4, blank 1
        "from __future__ import annotations\n\n"  # import 1, blank 1
        "import os\nfrom lodge.attic import (\n    ladder,\n    rope,\n)\n\n"  # import 5, blank 1
        "# A comment.\n"  # comment 1
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from lodge.cellar import door\n\n\n"  # code 2, import 1, blank 2
        "def enter(way=os.sep):  # code, and a remark\n"
        '    """Enter."""\n'
        '    name = "a local name"\n    """No docstring."""\n'
        "    return ladder(name), rope()\n"  # code 4, docstring 1
    ),
    "attic/__init__.py": 'from lodge.attic.beam import ladder, rope\n\nLAZY = {"hall": "lodge.hall:enter"}\n',
    "attic/beam.py": (
        "def ladder(name):\n    from lodge import hall\n\n    return name, hall\n\n\n"
        "def rope():\n    from . import nail\n    from ..cellar import door\n\n    return door(nail)\n"
    ),
    "attic/nail.py": "import lodge.cellar\nimport lodge.attic as own\n",
    "cellar.py": (
        'class Stairs:\n    """Down."""\n\n    @late("attic.beam:ladder")\n    def up(self): ...\n\n'
        '    @late("lodge.hall:enter")\n    def out(self): ...\n\n\n'
        "@decorated\ndef door(nail):\n" + "    nail += 1\n" * 41 + '    note = "lodge.nowhere:door"\n    return nail\n'
    ),
}


@pytest.fixture
def package(tmp_path: Path) -> Package:
    for name, text in FILES.items():
        path = tmp_path / "lodge" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Package.read(tmp_path / "lodge")


def test_lines_by_kind(package: Package) -> None:
    parts = package.parts()
    assert list(parts) == ["attic", "__init__.py", "cellar.py", "hall.py"]
    assert parts["hall.py"] == {"files": 1, "code": 6, "docstring": 5, "comment": 1, "blank": 5, "import": 7}
    assert parts["__init__.py"] == {"files": 1, "code": 1, "docstring": 2, "comment": 0, "blank": 1, "import": 0}
    assert parts["attic"] == {"files": 3, "code": 5, "docstring": 0, "comment": 0, "blank": 5, "import": 6}
    for name, text in FILES.items():
        counts = package.sources[".".join(("lodge", *Path(name).with_suffix("").parts)).removesuffix(".__init__")].lines
        assert sum(counts.values()) == text.count("\n"), name


def test_functions_of_more_than_forty_lines(package: Package) -> None:
    """Forty lines are not too many, and decorators don't count."""
    assert [tuple(one) for one in package.long_functions()] == [("cellar", 12, "door", 44)]
    cellar = package.sources["lodge.cellar"].path
    cellar.write_text(FILES["cellar.py"].replace("    nail += 1\n" * 4, "", 1), encoding="utf-8")
    assert Package.read(cellar.parent).long_functions() == []


def test_imports_by_kind(package: Package) -> None:
    found = {(package.short(one.file), package.short(one.target), one.how) for one in package.imports}
    assert found == {
        ("hall", "attic", "top"),
        ("hall", "cellar", "type"),
        ("attic", "attic.beam", "top"),
        ("attic", "hall", "late"),
        ("attic.beam", "hall", "late"),
        ("attic.beam", "attic.nail", "late"),
        ("attic.beam", "cellar", "late"),
        ("attic.nail", "cellar", "top"),
        ("attic.nail", "attic", "top"),
        ("cellar", "attic.beam", "face"),
        ("cellar", "hall", "face"),
    }


def test_circles_by_kind_of_import(package: Package) -> None:
    def of(*hows: str, packages: bool = False) -> list[list[str]]:
        return [list(map(package.short, one)) for one in circles(package.edges(hows, packages=packages))]

    assert of("top") == []
    assert of("top", "late") == [["attic", "attic.beam", "hall"]]
    assert of("top", "late", packages=True) == [["attic", "attic.beam", "attic.nail", "hall"]]
    assert of("top", "late", "type", packages=True) == of("top", "late", packages=True)
    assert of("top", "type") == []
    assert of("top", "face") == []
    assert of("top", "late", "face") == [["attic", "attic.beam", "attic.nail", "cellar", "hall"]]
    ties = package.ties(["lodge.attic", "lodge.attic.beam", "lodge.hall"], ("top", "late"))
    assert ties == [
        "attic:1 → attic.beam (top)",
        "attic:3 → hall (late)",
        "attic.beam:2 → hall (late)",
        "hall:9 → attic (top)",
    ]


def test_circles_are_the_files_that_reach_each_other() -> None:
    """Against reachability by repeated squaring, and what is left without a file against circles without it."""
    drawn = random.Random(4)
    for _ in range(60):
        names = "abcdefghijk"[: drawn.randint(2, 11)]
        edges = {name: frozenset(drawn.sample(names, drawn.randint(0, min(2, len(names))))) for name in names}
        reach = {name: {name, *targets} for name, targets in edges.items()}
        for _ in names:
            reach = {name: set().union(*(reach[other] for other in others)) for name, others in reach.items()}
        naive = {frozenset(other for other in reach[name] if name in reach[other]) for name in names}
        found = circles(edges)
        assert {frozenset(one) for one in found} == {one for one in naive if len(one) > 1}
        if found:
            (first, left), *_ = knots(found[0], edges)
            rest = {name: edges[name] & set(found[0]) - {first} for name in found[0] if name != first}
            assert left == max(map(len, circles(rest)), default=0)


def test_moves_between_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls through other libraries count, resumptions too; bodies of modules and what they call do not."""
    (tmp_path / "moved_a.py").write_text(
        "import moved_b\n"
        "def go():\n"
        "    moved_b.one()\n"  # 1: a to b
        "    sorted([3, 1], key=moved_b.one)\n"  # 2 more, through sorted
        "    own()\n"
        "    return list(moved_b.several(3))\n"  # 4 more: begun, and resumed three times
        "def own():\n"
        "    def inner():\n"
        "        import moved_c\n"
        "    inner()\n"
    )
    (tmp_path / "moved_b.py").write_text(
        "def one(_=None):\n    return back()\n"
        "def back():\n    return 0\n"
        "def several(count):\n    yield from range(count)\n"
        "one()\n"
    )
    (tmp_path / "moved_c.py").write_text("import moved_b\nmoved_b.one()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import moved_a  # type: ignore[import-not-found]

    moves = moves_of(moved_a.go, tmp_path)
    assert (moves.files, moves.moves) == (2, 7)
    assert moves.busiest == [("moved_a.py", "moved_b.py", 7)]
    assert sys.getprofile() is None


def test_attend_enters_few_files() -> None:
    """The way from a command to a number; the moves are those of Python 3.11, later versions have fewer."""
    moves = run("attend")
    assert moves.files <= 76
    assert moves.moves <= 1360


@pytest.mark.slow
def test_the_command_counts_the_real_tree() -> None:
    """As many lines as there are ends of lines, as many files as a search finds, and every option of a help."""
    house = str(Path(__file__).parents[1] / "benchmarks" / "house.py")

    def printed(*command: str) -> str:
        return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True).stdout

    figures = json.loads(printed(house, "--json", "--without-moves"))
    texts = [path.read_bytes() for path in Path(headscope.__file__).parent.glob("**/*.py")]
    assert figures["total"]["files"] == len(texts)
    assert figures["total"]["lines"] == sum(text.count(b"\n") for text in texts)
    assert figures["total"]["lines"] == sum(figures["total"][kind] for kind in KINDS)
    assert figures["circles"]["imports at the top of files"]["circles"] == []
    options = set(re.findall(r"^\W*(--\w+) {2}", printed("-m", "headscope", "shapes", "--help"), re.MULTILINE))
    assert figures["options"]["shapes"] == len(options - {"--help"})
    tables = printed(house, "--without-moves")
    assert f"{figures['total']['lines']:,}" in tables
    assert f"options over all commands: {sum(figures['options'].values())}" in tables
