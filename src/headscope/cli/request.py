"""What every command that reads a text takes: a model, a text, and how it is to be read; and the forms of an answer."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from headscope.cli.app import DOUBTFUL, opened, tell
from headscope.cli.options import number
from headscope.cli.progress import layers_shown
from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope._trace import Trace
    from headscope.model import Model

LONGEST = 300
"""Characters of a text that a command to paste repeats."""


@dataclass(frozen=True)
class Form:
    """How an answer is printed: for people by default, else as one of these."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False

    @property
    def name(self) -> str | None:
        """The option that was given; None for none.

        Raises:
            InputError: more than one was given.
        """
        given = {"--json": self.as_json, "--csv": self.as_csv, "--markdown": self.as_markdown}
        names = [name for name, on in given.items() if on]
        if len(names) > 1:
            raise InputError(
                f"{' and '.join(names)} can't be printed at once", where=names[1], advice="ask for one of them"
            )
        return names[0] if names else None


@dataclass(frozen=True)
class TextRequest:
    """A model and the text that it is to read, as they were typed."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="A hub id, a folder, a file, or - for the bundled model.",
        ),
    ]
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", show_default=False, help="The text to read; - takes it from standard input."),
    ] = None
    pair: Annotated[str | None, typer.Option("--pair", metavar="TEXT", help="A second text that goes with it.")] = None
    max_length: Annotated[
        int | None, typer.Option("--max-length", parser=number, metavar="N", help="Cut a longer text to N tokens.")
    ] = None
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="NAME", help="A branch, tag or commit of a hub id.")
    ] = None

    @property
    def second(self) -> str | None:
        """The second text, as it was typed."""
        return None if self.pair is None else as_typed(self.pair)

    def given_text(self) -> str:
        """TEXT, from standard input where it is `-`.

        Raises:
            InputError: there is none, or standard input can't be read or is not valid UTF-8.
        """
        if self.text is None:
            if " " in self.model.strip() and not os.path.exists(self.model):
                advice = f"the first argument is the model, - is the bundled one: - {self.model!r}"
            else:
                advice = f'say what the model is to read: {shlex.quote(self.model)} "The cat sat on the mat."'
            raise InputError("there is no TEXT", where=f"MODEL {self.model}", advice=advice)
        return as_typed(self.text) if self.text != "-" else _standard_input()

    def step(self, command: str, text: str | None, *more: str) -> str:
        """A command to paste, with this model and text; one about the model alone where the text is long.

        Args:
            text: what the model read; also where it came from standard input.
            more: further options.
        """
        if self.text is None:
            return pasted(command, self.model, *more)
        text = text if self.text == "-" else as_typed(self.text)
        if text is None or len(text) + len(self.pair or "") > LONGEST:
            return pasted("summary", self.model, *self._options(("revision",)))
        return pasted(command, self.model, text, *self._options(tuple(field.name for field in fields(self)[2:])), *more)

    def _options(self, names: Sequence[str]) -> list[str]:
        """Options as they were typed."""
        options: list[str] = []
        for name in names:
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if isinstance(value, list):
                options += [part for head in value for part in (option, head)]
            elif value is True:
                options.append(option)
            elif value not in (None, False):
                options += [option, str(value)]
        return options


@dataclass(frozen=True)
class Request(TextRequest):
    """The same, for commands that show a forward pass: also of words, of ids, with heads silenced, or a saved trace."""

    words: Annotated[bool, typer.Option("--words", help="TEXT is words that are split already, at its spaces.")] = False
    ids: Annotated[bool, typer.Option("--ids", help="TEXT is ready-made token ids, such as '101 7592 102'.")] = False
    ablate: Annotated[
        list[str] | None,
        typer.Option("--ablate", metavar="L.H", help="Silence head H of layer L; may be given several times."),
    ] = None

    def trace(
        self, *, check: Callable[[Model], object] = lambda model: None, doubts: bool = True
    ) -> tuple[Model, Trace]:
        """The model, and its forward pass over the text.

        Args:
            check: called with the model before any weight is read.
            doubts: whether problems of the checkpoint are printed to stderr.
        """
        from headscope.view.typed import head_names, number_list, word_list

        silenced = head_names(self.ablate or ())
        if self.words and self.ids:
            raise InputError("TEXT can't be both words and ids", where="--ids", advice="give one of --words and --ids")
        if (self.words or self.ids) and self.pair is not None:
            raise InputError(
                "a second text goes with a first text only", where="--pair", advice="leave out --words, --ids or --pair"
            )
        typed = self.given_text()
        model = opened(self.model, self.revision)
        check(model)
        with layers_shown(sys.stderr) as progress:
            given: dict[str, Any] = {"max_length": self.max_length, "ablate": silenced, "progress": progress}
            if self.ids:
                ids = number_list(typed, noun="token id", option="--ids", example="'101 7592 102'")
                trace = model.trace(ids=ids, **given)
            elif self.words:
                trace = model.trace(words=word_list(typed), **given)
            else:
                trace = model.trace(typed, self.second, **given)
        for problem in model.anatomy.problems if doubts else ():
            tell(f"! {problem}")
        return model, trace

    def load_or_trace(
        self, *, check: Callable[[Model], object] = lambda model: None, doubts: bool = True
    ) -> tuple[Model | None, Trace]:
        """The saved trace that MODEL names, where there is no TEXT and it names one; else as `trace`."""
        from headscope._trace import is_trace, load

        if self.text is not None or not is_trace(self.model):
            return self.trace(check=check, doubts=doubts)
        if any(getattr(self, field.name) not in (None, False) for field in fields(self)[2:]):
            raise InputError(
                "a trace that was saved has been computed: no option of the forward pass can change it",
                where=self.model,
                advice="leave out --pair, --words, --ids, --max-length, --ablate and --revision",
            )
        return None, load(self.model)


def pasted(*words: str) -> str:
    """A command of headscope's that a shell takes."""
    return shlex.join(["headscope", *words])


def as_typed(text: str) -> str:
    """An argument as it was typed: where the locale could not decode its bytes, they are taken as UTF-8."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise InputError(
            f"it can't be read: {error.strerror or error}",
            where="standard input",
            advice="pipe the text in, or give it as TEXT",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text is not valid UTF-8: byte {error.start} is {error.object[error.start]:#04x}",
            where="standard input",
            advice="convert it to UTF-8",
        ) from error


def exit_code(trace: Trace) -> int:
    """The exit code when the rest has been shown: 1 where weights are not numbers, which is printed here."""
    from headscope._trace import broken_line

    if (line := broken_line(trace)) is None:
        return 0
    tell(f"! {line}")
    return DOUBTFUL


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take a TextRequest or Request and a Form: their fields become its arguments and options.

    MODEL and TEXT come first, then the command's own options, then the others in the order of their classes.
    """
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    classes = {name: hints[name] for name in own if hints.get(name) in (TextRequest, Request, Form)}
    parameters = [parameter for kind in classes.values() for parameter in _parameters_of(kind)]
    first = [parameter for parameter in parameters if parameter.name in ("model", "text")]
    mine = [of.replace(annotation=hints[name], kind=of.KEYWORD_ONLY) for name, of in own.items() if name not in classes]
    signature = inspect.Signature([*first, *mine, *(of for of in parameters if of not in first)])

    @wraps(command)
    def spread(**given: Any) -> None:
        for name, kind in classes.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    spread.__signature__ = signature  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return spread


@cache
def _parameters_of(kind: type[Form | TextRequest]) -> tuple[inspect.Parameter, ...]:
    """A class's fields as keyword-only parameters."""
    types = get_type_hints(kind, include_extras=True)
    return tuple(
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=types[field.name],
        )
        for field in fields(kind)
    )
