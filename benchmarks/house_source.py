"""The source of a package, counted: lines by kind, long functions, imports and the circles that they close.

A file is a node and an import an edge to the file of the module that it names; `from package import module` leads to
that module. Imports have kinds, so that circles can be counted with some of them only:

- top: runs when the file is imported;
- late: inside a function, or the name of a module in a string, as for `import_module`;
- face: a decorator `@late("module:function")`, whose method is that function, imported at its first call;
- type: under `if TYPE_CHECKING`, which never runs.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

KINDS = ("code", "docstring", "comment", "blank", "import")
"""Kinds of lines. Blank lines within a docstring are docstring, and so are strings below an assignment of a module or a
class, which document it."""

LONGEST = 40
"""Most lines of a function, from `def` to its end; longer ones are listed."""

SMALL = 6
"""Most files of a circle whose imports are all listed."""

How = Literal["top", "late", "face", "type"]
Edges = Mapping[str, frozenset[str]]


class Import(NamedTuple):
    """An import of one module of the package by another.

    Attributes:
        file: the module that imports, without the package's name.
        line: where.
        target: the module that is imported.
        how: top, late, face or type.
    """

    file: str
    line: int
    target: str
    how: How


class Function(NamedTuple):
    """A function that is longer than LONGEST: its module, line, name, and number of lines."""

    file: str
    line: int
    name: str
    lines: int


@dataclass(frozen=True)
class Source:
    """One file of the package.

    Attributes:
        name: the module's name, such as `headscope.screens.matrix`; a package's for an `__init__.py`.
        path: the file.
        part: the folder or the file of the package that it is in: `view`, `errors.py`.
        text: its text.
    """

    name: str
    path: Path
    part: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file, parsed."""
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> Counter[str]:
        """The number of lines of each kind."""
        spans: dict[int, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                spans |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), "import")
            for text in _documentation(node):
                spans |= dict.fromkeys(range(text.lineno, (text.end_lineno or 0) + 1), "docstring")
        counts = Counter(dict.fromkeys(KINDS, 0))
        for number, line in enumerate(self.text.splitlines(), 1):
            plain = "comment" if line.lstrip().startswith("#") else "code" if line.strip() else "blank"
            counts[spans.get(number, plain)] += 1
        return counts


def _called(node: ast.expr) -> str | None:
    """The name of `name` or `module.name`; None for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _documentation(node: ast.AST) -> Iterator[ast.expr]:
    """The docstring of a module, a class or a function, and the strings below its assignments if it is no function."""
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    before: list[ast.stmt | None] = [None, *node.body]
    for previous, statement in zip(before, node.body, strict=False):
        first = previous is None
        below = isinstance(previous, (ast.Assign, ast.AnnAssign)) and isinstance(node, (ast.Module, ast.ClassDef))
        text = statement.value if isinstance(statement, ast.Expr) and (first or below) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield text


@dataclass(frozen=True)
class Package:
    """A package's files, by the names of their modules."""

    name: str
    sources: Mapping[str, Source]

    @classmethod
    def read(cls, folder: Path) -> Package:
        """Read every Python file of a package's folder."""
        sources = {}
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder)
            name = ".".join((folder.name, *inside.with_suffix("").parts)).removesuffix(".__init__")
            sources[name] = Source(name, path, inside.parts[0], path.read_text(encoding="utf-8"))
        return cls(folder.name, sources)

    def parts(self) -> dict[str, Counter[str]]:
        """The number of lines of each kind, and of files, in each part: folders first."""
        parts: dict[str, Counter[str]] = {}
        for source in sorted(self.sources.values(), key=lambda source: (source.part.endswith(".py"), source.part)):
            parts.setdefault(source.part, Counter()).update({"files": 1, **source.lines})
        return parts

    def long_functions(self) -> list[Function]:
        """Functions and methods of more than LONGEST lines, decorators not counted, the longest first."""
        functions = [
            Function(self.short(source.name), node.lineno, node.name, (node.end_lineno or 0) - node.lineno + 1)
            for source in self.sources.values()
            for node in ast.walk(source.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        return sorted((one for one in functions if one.lines > LONGEST), key=lambda one: -one.lines)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import of a module of the package by another."""
        return tuple(
            Import(source.name, line, target, how)
            for source in self.sources.values()
            for line, target, how in dict.fromkeys(self._imports(source, source.tree, "top"))
            if target != source.name
        )

    def _imports(self, source: Source, node: ast.AST, how: How) -> Iterator[tuple[int, str, How]]:
        """Line, module and kind of each import below a node that itself runs in this way."""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((node.lineno, target, how) for target in self._targets(source, node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = node.value.partition(":")[0]
            if "." in target and target in self.sources:
                yield node.lineno, target, how if how == "type" else "late"
        elif isinstance(node, ast.If) and _called(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                yield from self._imports(source, statement, "type")
            for statement in node.orelse:
                yield from self._imports(source, statement, how)
        elif isinstance(node, ast.Call) and _called(node.func) == "late":
            for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from ((given.lineno, target, "face") for target in self._face(given))
        else:
            inside = how == "top" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            decorators = getattr(node, "decorator_list", [])
            for inner in ast.iter_child_nodes(node):
                yield from self._imports(source, inner, "late" if inside and inner not in decorators else how)

    def _targets(self, source: Source, node: ast.Import | ast.ImportFrom) -> list[str]:
        """The modules of the package that a statement names."""
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names if alias.name in self.sources]
        module = node.module or ""
        if node.level:
            home = source.name.split(".") + ([""] if source.path.name == "__init__.py" else [])
            module = ".".join([*home[: len(home) - node.level], *([module] if module else [])])
        named = [f"{module}.{alias.name}" for alias in node.names]
        return [name if name in self.sources else module for name in named if {name, module} & self.sources.keys()]

    def _face(self, given: ast.expr) -> list[str]:
        """The module of an argument such as "statistics:statistics"; the package's name may be left out."""
        if not isinstance(given, ast.Constant) or not isinstance(given.value, str):
            return []
        module = given.value.partition(":")[0]
        return [name for name in (module, f"{self.name}.{module}") if name in self.sources]

    def edges(self, hows: Iterable[How], *, packages: bool = False) -> dict[str, frozenset[str]]:
        """Which module imports which, by imports of these kinds.

        Args:
            hows: the kinds.
            packages: count imports from the packages that a module is itself in, and the package's own `__init__.py`.
                Python runs these before the module itself, so that by default they are no dependence.
        """
        hows = set(hows)
        edges: dict[str, set[str]] = {name: set() for name in self.sources if packages or name != self.name}
        for one in self.imports:
            own = one.file.startswith(f"{one.target}.")
            if one.how in hows and one.file in edges and one.target in edges and (packages or not own):
                edges[one.file].add(one.target)
        return {name: frozenset(targets) for name, targets in edges.items()}

    def short(self, name: str) -> str:
        """A module's name without the package's."""
        return name.removeprefix(f"{self.name}.")

    def ties(self, circle: Sequence[str], hows: Sequence[How], *, packages: bool = False) -> list[str]:
        """What holds a circle together, as lines: its imports, or the files without which it opens soonest."""
        if len(circle) <= SMALL:
            inside = {(one.file, one.target): one for one in reversed(self.imports) if one.how in hows}
            return [
                f"{self.short(one.file)}:{one.line} → {self.short(one.target)} ({one.how})"
                for one in sorted(inside.values())
                if {one.file, one.target} <= set(circle)
            ]
        return [
            f"without {self.short(name)}: {left}" for name, left in knots(circle, self.edges(hows, packages=packages))
        ]


def circles(edges: Edges) -> list[list[str]]:
    """Sets of files each of which reaches all others of its set, the largest first (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    result: list[list[str]] = []
    for start in edges:
        if start in order:
            continue
        path = [(start, iter(sorted(edges[start])))]
        order[start] = low[start] = len(order)
        waiting.append(start)
        while path:
            name, targets = path[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    waiting.append(target)
                    path.append((target, iter(sorted(edges[target]))))
                    break
                if target in waiting:
                    low[name] = min(low[name], order[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[name])
                if low[name] == order[name]:
                    at = waiting.index(name)
                    result.append(sorted(waiting[at:]))
                    del waiting[at:]
    return sorted((circle for circle in result if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def knots(circle: Iterable[str], edges: Edges) -> list[tuple[str, int]]:
    """Files to take out of a circle, one after another, and the size of the largest circle that is then left.

    Each is the one that leaves the smallest, so the first few are what ties a circle; 0 once nothing is left of it.
    """
    left = {name: edges[name] & set(circle) for name in circle}
    steps: list[tuple[str, int]] = []
    while largest := circles(left):
        sizes = {}
        for name in largest[0]:
            rest = {other: targets - {name} for other, targets in left.items() if other != name}
            sizes[name] = max(map(len, circles(rest)), default=0)
        name = min(sizes, key=lambda name: (sizes[name], name))
        steps.append((name, sizes[name]))
        left = {other: targets - {name} for other, targets in left.items() if other != name}
    return steps
