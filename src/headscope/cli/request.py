"""Arguments of all commands that read a text: a model, a text and how to read it; and the forms of the output."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from headscope.cli.app import DOUBTFUL, opened, tell
from headscope.cli.options import number
from headscope.cli.progress import layer_progress
from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope._trace import Trace
    from headscope.model import Model

LONGEST = 300
"""Most characters of a text for it to be repeated in a command to paste."""


@dataclass(frozen=True)
class Form:
    """The form of the output: by default a screen, otherwise one of these."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False

    @property
    def name(self) -> str | None:
        """The option given, or None.

        Raises:
            InputError: more than one was given.
        """
        options = {"--json": self.as_json, "--csv": self.as_csv, "--markdown": self.as_markdown}
        names = [name for name, on in options.items() if on]
        if len(names) > 1:
            raise InputError(f"{' and '.join(names)} exclude each other", where=names[1], advice="use one of them")
        return names[0] if names else None


@dataclass(frozen=True)
class TextRequest:
    """A model and the text for it to read, as typed."""

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
        typer.Argument(metavar="TEXT", show_default=False, help="The text to read, or - for standard input."),
    ] = None
    pair: Annotated[
        str | None, typer.Option("--pair", metavar="TEXT", help="A second text, for models that read pairs.")
    ] = None
    max_length: Annotated[
        int | None, typer.Option("--max-length", parser=number, metavar="N", help="Truncate the text to N tokens.")
    ] = None
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="NAME", help="A branch, tag or commit of the model on the hub.")
    ] = None

    @property
    def second(self) -> str | None:
        """The second text, as typed."""
        return None if self.pair is None else as_typed(self.pair)

    def given_text(self) -> str:
        """TEXT, or standard input for `-`.

        Raises:
            InputError: there is no TEXT, or standard input can't be read or is not valid UTF-8.
        """
        if self.text is None:
            if " " in self.model.strip() and not os.path.exists(self.model):
                advice = f"the first argument is the model, - for the bundled one: - {self.model!r}"
            else:
                advice = f'add a text for the model to read: {shlex.quote(self.model)} "The cat sat on the mat."'
            raise InputError("TEXT is missing", where=f"MODEL {self.model}", advice=advice)
        return as_typed(self.text) if self.text != "-" else _standard_input()

    def step(self, command: str, text: str | None, *more: str) -> str:
        """A command to paste, with this model and text; of a long text, one about the model alone.

        Args:
            command: its name.
            text: the text that the model read, even if it came from standard input.
            more: further options.
        """
        if self.text is None:
            return pasted(command, self.model, *more)
        text = text if self.text == "-" else as_typed(self.text)
        if text is None or len(text) + len(self.pair or "") > LONGEST:
            return pasted("summary", self.model, *self._options(("revision",)))
        return pasted(command, self.model, text, *self._options(tuple(field.name for field in fields(self)[2:])), *more)

    def _options(self, names: Sequence[str]) -> list[str]:
        """Options as typed."""
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
    """A TextRequest for commands that show a forward pass: also words, ids, silenced heads, or a saved trace."""

    words: Annotated[bool, typer.Option("--words", help="Treat TEXT as ready-made words, separated by spaces.")] = False
    ids: Annotated[bool, typer.Option("--ids", help="Treat TEXT as token ids, such as '101 7592 102'.")] = False
    ablate: Annotated[
        list[str] | None,
        typer.Option("--ablate", metavar="L.H", help="Silence head H of layer L. Can be repeated."),
    ] = None

    def trace(
        self, *, check: Callable[[Model], object] = lambda model: None, doubts: bool = True
    ) -> tuple[Model, Trace]:
        """Open the model and run it over the text.

        Args:
            check: called with the model before any weight is read.
            doubts: print problems of the checkpoint on stderr.
        """
        from headscope.view.typed import head_names, number_list, word_list

        silenced = head_names(self.ablate or ())
        if self.words and self.ids:
            raise InputError("TEXT can't be both words and ids", where="--ids", advice="use either --words or --ids")
        if (self.words or self.ids) and self.pair is not None:
            raise InputError(
                "--pair can't be combined with --words or --ids", where="--pair", advice="omit one of them"
            )
        typed = self.given_text()
        model = opened(self.model, self.revision)
        check(model)
        with layer_progress(sys.stderr) as progress:
            options: dict[str, Any] = {"max_length": self.max_length, "ablate": silenced, "progress": progress}
            if self.ids:
                ids = number_list(typed, noun="token id", option="--ids", example="'101 7592 102'")
                trace = model.trace(ids=ids, **options)
            elif self.words:
                trace = model.trace(words=word_list(typed), **options)
            else:
                trace = model.trace(typed, self.second, **options)
        for problem in model.anatomy.problems if doubts else ():
            tell(f"! {problem}")
        return model, trace

    def load_or_trace(
        self, *, check: Callable[[Model], object] = lambda model: None, doubts: bool = True
    ) -> tuple[Model | None, Trace]:
        """Load the saved trace that MODEL names, if there is no TEXT; otherwise as `trace`."""
        from headscope._trace import is_trace, load

        if self.text is not None or not is_trace(self.model):
            return self.trace(check=check, doubts=doubts)
        if any(getattr(self, field.name) not in (None, False) for field in fields(self)[2:]):
            raise InputError(
                "options of the forward pass can't change a saved trace",
                where=self.model,
                advice="omit --pair, --words, --ids, --max-length, --ablate and --revision",
            )
        return None, load(self.model)


def pasted(*words: str) -> str:
    """A headscope command, quoted for a shell."""
    return shlex.join(["headscope", *words])


def as_typed(text: str) -> str:
    """An argument as typed. Bytes that the locale could not decode are decoded as UTF-8."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise InputError(
            f"standard input can't be read: {error.strerror or error}",
            where="standard input",
            advice="pipe the text in, or pass it as TEXT",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text is not valid UTF-8: byte {error.start} is {error.object[error.start]:#04x}",
            where="standard input",
            advice="convert it to UTF-8",
        ) from error


def exit_code(trace: Trace) -> int:
    """The exit code for a trace: 1 if weights are not numbers, which is also printed on stderr."""
    from headscope._trace import broken_line

    if (line := broken_line(trace)) is None:
        return 0
    tell(f"! {line}")
    return DOUBTFUL


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the fields of a command's dataclasses, such as its Request and its Form, into its arguments and options.

    MODEL and TEXT come first, then the command's own options in their order, then those that all commands share: the
    rest of its TextRequest or Request, and its Form.
    """
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    classes = {name: hints[name] for name in own if is_dataclass(hints[name])}
    spelled: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name in classes:
            (shared if issubclass(classes[name], TextRequest | Form) else spelled).extend(_parameters_of(classes[name]))
        else:
            spelled.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
    first = [parameter for parameter in shared if parameter.name in ("model", "text")]
    signature = inspect.Signature([*first, *spelled, *(parameter for parameter in shared if parameter not in first)])

    @wraps(command)
    def spread(**arguments: Any) -> None:
        for name, kind in classes.items():
            arguments[name] = kind(**{field.name: arguments.pop(field.name) for field in fields(kind)})
        command(**arguments)

    spread.__signature__ = signature  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return spread


@cache
def _parameters_of(kind: type[Any]) -> tuple[inspect.Parameter, ...]:
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
