"""The house itself: budgets, imports that go one way, the public face, the map, docstrings, no counted seconds."""

from __future__ import annotations

import ast
import inspect
import itertools
import pydoc
import re
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

import headscope as hs
from commands import imported, python
from costs import Costs
from headscope.traces import HeadTrace, LayerTrace
from headscope.traces.late_methods import Questions

SOURCE = Path(hs.__file__).parent
PARTS = """
errors settings files late pages progress_bar results checkpoint anatomy attention traces encoder model live heads
runs explain verify atlas opening screens page cli
"""
ORDER = PARTS.split()
"""Each part may import only what stands before it."""

HEAVY = ("numpy", "torch", "transformers", "ray", "starlette", "uvicorn", "matplotlib", "pyarrow", "huggingface_hub")


FILES = {
    ".".join(("headscope", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
"""Every module's name and file."""


def of_headscope(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of each name that an import statement takes from headscope; name is empty for `import module`."""
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headscope"):
        yield from ((node.module, alias.name) for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names if alias.name.startswith("headscope"))
    elif isinstance(node, ast.Constant) and str(node.value).startswith("headscope."):
        yield str(node.value).partition(":")[0], ""  # for import_module


@cache
def tree_of(module: str) -> ast.Module:
    """A file's tree; read when a test needs it, since every worker imports this file."""
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def nodes_of(module: str) -> list[ast.AST]:
    """All nodes of a file; to walk through the trees takes longer than to read them."""
    return list(ast.walk(tree_of(module)))


@cache
def passed_on(module: str) -> dict[str, str]:
    """The names that a package passes on, with the modules that it takes them from."""
    if module == "headscope" or module not in FILES or FILES[module].name != "__init__.py":
        return {}
    return {name: origin for node in tree_of(module).body for origin, name in of_headscope(node)}


def origin(module: str, name: str) -> str:
    """The file that a name comes from, through packages that pass it on."""
    while f"{module}.{name}" not in FILES and name in passed_on(module):
        module = passed_on(module)[name]
    return f"{module}.{name}" if f"{module}.{name}" in FILES else module


@cache
def taken_from(module: str) -> dict[tuple[str, str], bool]:
    """The names that a file takes from headscope, without those of `late`; True for those for checking types alone."""
    found: dict[tuple[str, str], bool] = {}
    nodes = nodes_of(module)
    late = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "late"]
    checks = [node for node in nodes if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    of_late, of_checks = ({id(inner) for node in outer for inner in ast.walk(node)} for outer in (late, checks))
    for node in nodes:
        types = id(node) in of_checks
        found |= {pair: types and found.get(pair, True) for pair in of_headscope(node) if id(node) not in of_late}
    return found


@cache
def imports(module: str, *, types: bool = True) -> set[str]:
    """The files of headscope that a file imports names from, at its top and late; with `types`, for checking types."""
    files = {origin(*pair) for pair, for_types in taken_from(module).items() if types or not for_types}
    return {file for file in files if file in FILES and file not in ("headscope", module)}


def place(module: str) -> int:
    """The place in ORDER of the part that a file belongs to."""
    return ORDER.index(module.split(".")[1])


def test_imports_go_one_way() -> None:
    inside = [module for module in FILES if module not in ("headscope", "headscope.__main__")]
    taken = [(module, name) for module in inside for name in imports(module, types=True)]
    assert [(module, name) for module, name in taken if place(name) > place(module)] == []


def circles(*, types: bool) -> list[set[str]]:
    """The sets of files of which each reaches all others through imports."""
    graph = {
        module: imports(module, types=types) for module in FILES if module not in ("headscope", "headscope.__main__")
    }
    reached = {}
    for module in graph:
        reached[module], ahead = set[str](), [module]
        while ahead:
            new = graph[ahead.pop()] - reached[module]
            reached[module] |= new
            ahead += new
    rings = {frozenset(other for other in reached[at] if at in reached[other]) for at in graph if at in reached[at]}
    return [set(ring) for ring in rings]


def test_no_files_import_each_other_in_a_circle() -> None:
    """Late imports count. For type checking alone, a record and its parts may name each other, two files at a time."""
    assert circles(types=False) == []
    named = circles(types=True)
    assert max(map(len, named), default=0) <= 2
    assert len(named) <= 3


FACES = {
    f"{cls.__name__}.{name}": (cls, face)
    for cls in (hs.Trace, Questions, HeadTrace, LayerTrace, hs.Model)
    for name, face in vars(cls).items()
    if hasattr(face, "late")
}


def test_a_late_method_has_the_signature_of_what_it_calls() -> None:
    for name, (cls, face) in FACES.items():
        module, _, function = face.late.partition(":")
        assert place(module) >= place(cls.__module__), f"{name} calls {module}, which stands above it"
        target = inspect.signature(getattr(import_module(module), function))
        options = list(inspect.signature(face).parameters.values())
        assert face.__doc__, name
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in options):
            for given, wanted in zip(options[1:], list(target.parameters.values())[1:], strict=True):
                assert (given.name, given.kind) == (wanted.name, wanted.kind), name
                assert wanted.default in (given.default, wanted.empty), f"the default of {name}'s {given.name}"


def test_only_a_late_or_abstract_method_has_no_body() -> None:
    """mypy leaves this to the test, so that a late method is its signature and its docstring."""
    for module in FILES:
        faces = {
            id(method)
            for cls in nodes_of(module)
            if isinstance(cls, ast.ClassDef) and any(getattr(base, "id", "") == "Protocol" for base in cls.bases)
            for method in cls.body
        }
        for node in nodes_of(module):
            if isinstance(node, ast.FunctionDef) and len(node.body) == 1 and ast.get_docstring(node) is not None:
                marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
                nothing = node.returns is not None and ast.unparse(node.returns) == "None"
                assert nothing or id(node) in faces or marks & {"late", "abstractmethod"}, f"{module}: {node.name}"


FACTORIES = re.compile(r"torch\.(arange|as_tensor|empty|eye|full|linspace|ones|rand|randint|randn|tensor|zeros)")


def test_every_new_tensor_has_a_device() -> None:
    """A user may have set another by default, torch.set_default_device("cuda"): arrays of NumPy stand beside it."""
    for module in FILES:
        for node in nodes_of(module):
            if isinstance(node, ast.Call) and FACTORIES.fullmatch(ast.unparse(node.func)):
                given = {keyword.arg for keyword in node.keywords}
                assert "device" in given, f"{module}, line {node.lineno}: {ast.unparse(node)}"


def test_importing_headscope_imports_nothing_heavy() -> None:
    assert imported("import headscope", HEAVY) == []


def test_the_commands_need_neither_torch_nor_transformers() -> None:
    """A file that imports them at its top must not be imported by one that any command needs."""
    code = """
import sys
sys.modules.update(torch=None, transformers=None)
from typer.testing import CliRunner
from headscope.cli import app
for line in ("", "summary -", "shapes - --tree", "head - 0.0", "fit - BertForSequenceClassification", "verify - cat",
             "attend - cat --statistic entropy", "predict - [MASK]", "effects - [MASK]", "attribute - [MASK]",
             "match - a b c", "view - --html {0}/a.html", "view - cat --html {0}/b.html"):
    result = CliRunner().invoke(app, line.format(sys.argv[1]).split())
    assert result.exit_code == 0, (line, result.output, result.exception)
"""
    with TemporaryDirectory() as folder:
        python(code, folder)


ENTERED = """
import sys
import headscope as hs
{before}
for call in {calls!r}:
    files = set()
    def see(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_flags & 1 and code.co_name[0] != "<":
            files.add(code.co_filename)
    sys.setprofile(see)
    exec(call)
    sys.setprofile(None)
    print(len([file for file in files if file.startswith(hs.__path__[0])]))
"""
"""Prints in how many of our files functions are called; what runs when a file is imported is none."""
ATTEND = "CliRunner().invoke(app, ['attend', '-', 'A cat sat.'], catch_exceptions=False)"
BERT = "BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16, vocab_size=50)"
CAPTURE = "with hs.capture(model) as captured: model(ids)\ncaptured.trace[0, 1].weights[...]"
MODEL = f"model, ids = BertModel({BERT}).eval(), torch.arange(3, 10)[None]"
SURVEY = "hs.survey('-', ['The cat sat on the mat.'] * 30, labels=True)"


@pytest.mark.parametrize(
    ("before", "most"),
    [
        ("from typer.testing import CliRunner\nfrom headscope.cli import app", {ATTEND: 70}),
        pytest.param(
            f"import torch\nfrom transformers import BertConfig, BertModel\n{MODEL}",
            {CAPTURE: 70, SURVEY: 150},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["attend", "capture, survey"],
)
def test_a_call_enters_few_files(before: str, most: dict[str, int]) -> None:
    """So many would somebody open who follows it."""
    entered = map(int, python(ENTERED.format(before=before, calls=list(most))).split()[-len(most) :])
    assert {call: count for call, count in zip(most, entered, strict=True) if count > most[call]} == {}


def test_the_public_names_are_there() -> None:
    assert set(hs.__all__) < set(dir(hs))
    for name in hs.__all__:
        assert callable(getattr(hs, name))
    with pytest.raises(AttributeError, match="no attribute 'banana'"):
        hs.banana


def test_no_package_has_the_name_of_a_public_function() -> None:
    """Importing headscope.live.x would otherwise make `headscope.capture` the package."""
    assert not set(hs.__all__) & {module.split(".")[1] for module in FILES if "." in module}


def test_help_of_a_public_name_is_that_of_the_function() -> None:
    for function in (hs.capture, hs.trace, hs.survey, hs.open, hs.load, hs.describe):
        assert inspect.isfunction(function)
        text = pydoc.render_doc(function, renderer=pydoc.plaintext)
        assert "Raises:" in text
        assert str(inspect.signature(function)).split("(")[1][:10] in text
    with pytest.raises(AttributeError, match="cannot assign"):
        hs.open().trace("a cat").model = "another"  # type: ignore[misc]


def test_every_file_says_what_lives_there() -> None:
    for module in FILES:
        assert ast.get_docstring(tree_of(module)), module


def test_every_error_says_what_where_and_what_to_do() -> None:
    """A HeadscopeError is never raised without a place and an advice."""
    from headscope import errors

    names = {name for name, value in vars(errors).items() if isinstance(value, type)} - {"HeadscopeError"}
    for module in FILES:
        for node in nodes_of(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                given = {keyword.arg for keyword in node.keywords}
                assert {"where", "advice"} <= given or None in given, f"{module}:{node.lineno}"


LINES = {
    "results": 3690,
    "checkpoint": 5456,
    "anatomy": 4640,
    "attention": 1623,
    "traces": 1685,
    "encoder": 1405,
    "live": 11876,
    "heads": 2920,
    "runs": 2728,
    "explain": 3499,
    "verify": 1084,
    "atlas": 9591,
    "screens": 4308,
    "page": 2343,
    "cli": 1677,
    "": 1602,
}
"""Part -> its lines; the files beside the parts have no name. Raising a number is a change that a review sees."""
NAMES = {
    "results": 135,
    "checkpoint": 124,
    "anatomy": 140,
    "attention": 61,
    "traces": 27,
    "encoder": 37,
    "live": 248,
    "heads": 76,
    "runs": 77,
    "explain": 85,
    "verify": 27,
    "atlas": 191,
    "screens": 135,
    "page": 55,
    "cli": 63,
    "": 62,
}
"""Part -> its classes and functions that begin with no underscore, at the top of files."""
FILES_IN_ALL = 268
ROOM = 1.01
MOST_LINES = 700
"""Of a file: a room is a concept, not a length."""
LONG_FUNCTIONS = 88
"""Functions of more than 40 lines."""
COMMANDS, OPTIONS = 17, 90
"""Commands, and options in the help of all of them, but --help; what is rare is a setting."""
GUIDE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_each_part_keeps_its_budgets() -> None:
    lines, names = dict.fromkeys(LINES, 0), dict.fromkeys(NAMES, 0)
    for module, path in FILES.items():
        first, *rest = path.relative_to(SOURCE).parts
        part, nodes = first if rest else "", tree_of(module).body
        named = [node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
        lines[part] += len(path.read_text(encoding="utf-8").splitlines())
        names[part] += sum(not name.startswith("_") for name in named)
    for counts, budgets in ((lines, LINES), (names, NAMES)):
        assert {part: count for part, count in counts.items() if count > ROOM * budgets[part]} == {}
    assert len(FILES) <= ROOM * FILES_IN_ALL


def test_a_file_s_name_says_what_is_in_it_once() -> None:
    """No two parts have files of one name."""
    places: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        first, *rest = path.relative_to(SOURCE).parts
        places.setdefault(path.stem, set()).add(first if rest else "")
    shared = {name for name, parts in places.items() if len(parts) > 1}
    assert shared <= {"__init__", "__main__"}


def test_files_that_a_folder_names_stand_in_its_part() -> None:
    for path in SOURCE.rglob("__init__.py"):
        part = SOURCE.joinpath(*path.relative_to(SOURCE).parts[:1]) if path.parent != SOURCE else SOURCE
        there = {one.name for one in part.rglob("*.py")}
        assert {*re.findall(r"\b\w+\.py\b", ast.get_docstring(ast.parse(path.read_text())) or "")} <= there, path


def test_files_and_functions_have_a_size_to_read() -> None:
    sizes = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in FILES.items()}
    assert {module: size for module, size in sizes.items() if size > MOST_LINES} == {}
    functions = [node for one in FILES for node in nodes_of(one) if isinstance(node, ast.FunctionDef)]
    assert sum((node.end_lineno or 0) - node.lineno + 1 > 40 for node in functions) <= LONG_FUNCTIONS


def test_there_are_few_commands_and_options() -> None:
    from typer.main import get_command

    from headscope.cli import app

    group: Any = get_command(app)
    context = group.context_class(group, info_name="headscope")
    found = [one for name in group.list_commands(context) for one in group.get_command(context, name).params]
    assert sum(one.param_type_name == "option" and not one.hidden for one in found) <= OPTIONS
    assert len(group.list_commands(context)) <= COMMANDS


def test_the_map_names_every_part() -> None:
    """In the order of imports, and nothing else."""
    rows = re.findall(r"(?m)^\| `(\w+)(?:\.py|/)` \|", GUIDE)
    assert rows == [part for part in ORDER if "." not in part]
    assert {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or [*path.glob("*.py")]} == {
        *rows,
        "__init__",
        "__main__",
    }


def test_the_map_names_files_that_exist() -> None:
    """Every file and folder of the package that CONTRIBUTING.md names, and the path of a number in at most 15 files."""
    code = set(re.findall(r"`([\w./]+(?:\.py|\.ts|\.tsx|/))`", GUIDE))
    root = SOURCE.parents[1]
    files = [
        f"/{path.relative_to(root).as_posix()}"
        for kind in ("*.py", "*.ts*")
        for top in ("src", "web/src", "tests", "benchmarks")
        for path in (root / top).rglob(kind)
    ]
    missing = [
        name
        for name in code
        if not any((folder / name).exists() for folder in (SOURCE, root))
        and not any(file.endswith(f"/{name}") for file in files)
    ]
    assert missing == []
    path = GUIDE.partition("## The path of a number")[2].partition("A live model enters")[0]
    assert 0 < len(set(re.findall(r"`([\w/]+\.py)`", path))) <= 15


HERE = Path(__file__).parent
AROUND = {"attacks", "data", "docs", "golden", "gpu", "helpers"}
"""Folders of tests that are about several parts, or about what is around them."""


def test_the_tests_stand_in_folders_called_as_the_parts() -> None:
    folders = {path.name for path in HERE.iterdir() if any(path.glob("*.py")) or path.name == "data"}
    assert folders - AROUND == {part for part in ORDER if (SOURCE / part).is_dir()} - {"runs"}  # explain/ has those
    loose = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")}
    assert loose == {"house", "model", "options", "progress_bar", "writing"}


SECONDS = re.compile(
    r"timeout(?:_seconds)?=[\d.]|\.(?:wait|join|result|communicate)\([\d.]|wait_for_timeout\(\d{3}|deadline=\d"
    r"|set_default_timeout\(\d|sleep\([1-9]|\.launch\((?!.*timeout=PATIENCE)"
)


def test_no_test_counts_seconds() -> None:
    """The one limit is PATIENCE, after which a thing is said to hang."""
    counted = {path: SECONDS.findall(path.read_text(encoding="utf-8")) for path in HERE.rglob("*.py")}
    del counted[Path(__file__)]
    assert {path: seconds for path, seconds in counted.items() if seconds} == {}


def test_a_costly_test_is_listed() -> None:
    costs, said = Costs(0.4), list[str]()
    for name, seconds in (("short", 0.0), ("long", 0.5)):
        item: Any = SimpleNamespace(user_properties=[])
        call = costs.pytest_runtest_call(item)
        next(call)
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        with pytest.raises(StopIteration):
            call.send(None)
        costs.pytest_runtest_logreport(SimpleNamespace(when="call", nodeid=name, **vars(item)))  # type: ignore[arg-type]
    costs.pytest_terminal_summary(SimpleNamespace(section=said.append, write_line=said.append))
    assert [re.sub(r"^ *[\d.]+ s  ", "", line) for line in said[1:]] == ["TOO LONG  long", "short"]


QUESTION = re.compile(r"(What|How|Which|Where|Who|Whose|Whether|When|Why)\b")
DIALECT = re.compile(
    r"\b(flatters|lets go of|is no row of|give it its due|leave `\w+` out|unless told|put back|taken away)\b"
)
"""Phrases that a reader stumbles over, each of which was once in a docstring."""


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings among a file's nodes: its own, those of classes and functions, and of names."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield node.body[0].lineno, text
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for named, after in itertools.pairwise(body):
                value = after.value if isinstance(after, ast.Expr) else None
                if isinstance(named, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Constant):
                    yield after.lineno, str(value.value)


def test_all_docstrings_are_found() -> None:
    first, inside = (
        '"""A."""\nx = 1\n"""B."""\n',
        '    """D."""\n    y: int = 2\n    """E."""\n    def f(self):\n        """F."""\n',
    )
    tree = ast.parse(f"{first}class C:\n{inside}")
    assert sorted(docstrings(ast.walk(tree))) == [(1, "A."), (3, "B."), (5, "D."), (7, "E."), (9, "F.")]


def test_docstrings_are_noun_phrases_or_begin_with_a_verb() -> None:
    assert [
        f"{module}:{line}: {text}"
        for module in FILES
        for line, text in docstrings(nodes_of(module))
        if QUESTION.match(text) or DIALECT.search(text)
    ] == []
