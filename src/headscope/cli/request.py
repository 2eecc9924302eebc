"""Arguments of all commands that read a text: a model, a text and how to read it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from headscope.cli.app import DOUBTFUL, opened, tell
from headscope.cli.options import MaxLength, ModelName, Segments, argument, option
from headscope.errors import InputError
from headscope.progress_bar import progress_bar
from headscope.settings import Setting, declared

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.traces import Trace

LONGEST = 300
"""Most characters of a text for it to be repeated in a command to paste."""


@dataclass(frozen=True)
class TextRequest:
    """A model and the text for it to read, as typed."""

    model: ModelName
    text: Annotated[str | None, argument("TEXT", "The text to read, or - for standard input.")] = None
    pair: Annotated[str | None, option("--pair", "TEXT", "A second text, for models that read pairs.")] = None
    max_length: MaxLength = None
    segments: Segments = None
    tokenizer: Annotated[str | None, option("--tokenizer", "NAME", "Folder or model to take the tokenizer from.")] = (
        None
    )

    @property
    def second(self) -> str | None:
        """The second text, as typed."""
        return None if self.pair is None else as_typed(self.pair)

    def opened(self) -> Model:
        """Open the model."""
        return opened(self.model, self.tokenizer, self.segments)

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
            return pasted(command, self.model, options=more)
        text = text if self.text == "-" else as_typed(self.text)
        if text is None or len(text) + len(self.pair or "") > LONGEST:
            return pasted("summary", self.model)
        return pasted(command, self.model, text, options=(*self._options(), *more))

    def _options(self) -> list[str]:
        """The options as typed, and the settings with `--set`."""
        options: list[str] = []
        settings = declared(type(self))
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value in (None, False):
                continue
            if field.name in settings:
                options += ["--set", f"{field.name}={str(value).lower()}"]
            else:
                options += [f"--{field.name}", ",".join(value) if isinstance(value, list) else str(value)]
        return options


@dataclass(frozen=True)
class Request(TextRequest):
    """A TextRequest for commands that show a forward pass: also words, ids, silenced heads, or a saved trace."""

    words: Annotated[bool, Setting("Treat TEXT as ready-made words, separated by spaces.")] = False
    ids: Annotated[bool, Setting("Treat TEXT as token ids, such as '101 7592 102'.")] = False
    ablate: Annotated[
        list[str] | None, option("--ablate", "L.H,L", "Silence these heads, and all heads of these layers.")
    ] = None

    def trace(
        self, *, check: Callable[[Model], object] = lambda model: None, doubts: bool = True
    ) -> tuple[Model, Trace]:
        """Open the model and run it over the text, and say on stderr what was done to the text.

        Args:
            check: called with the model before any weight is read.
            doubts: print problems of the checkpoint on stderr.
        """
        from headscope.screens.values import head_list, id_list, word_list

        chosen = [one for names in self.ablate or () for one in head_list(names, "--ablate")]
        if self.words and self.ids:
            raise InputError("TEXT can't be both words and ids", where="ids", advice="set either words or ids")
        if (self.words or self.ids) and self.pair is not None:
            raise InputError("--pair can't be combined with words or ids", where="--pair", advice="omit one of them")
        typed = self.given_text()
        model = self.opened()
        check(model)
        silenced = [
            (layer, number)
            for layer, head in chosen
            for number in (range(len(model.layers[layer].heads)) if head is None else [head])
        ]
        with progress_bar("layers", sys.stderr) as progress:
            options: dict[str, Any] = {"max_length": self.max_length, "ablate": silenced, "progress": progress}
            if self.ids:
                trace = model.trace(ids=id_list(typed), **options)
            elif self.words:
                trace = model.trace(words=word_list(typed), **options)
            else:
                trace = model.trace(typed, self.second, **options)
        for problem in (*trace.notes, *(model.anatomy.problems if doubts else ())):
            tell(f"! {problem}")
        return model, trace

    def load_or_trace(
        self, *, check: Callable[[Model], object] = lambda model: None, doubts: bool = True
    ) -> tuple[Model | None, Trace]:
        """Load the saved trace that MODEL names, if there is no TEXT; otherwise as `trace`."""
        from headscope.traces import is_trace, load

        if self.text is not None or not is_trace(self.model):
            return self.trace(check=check, doubts=doubts)
        if any(getattr(self, field.name) not in (None, False) for field in fields(self)[2:]):
            raise InputError(
                "options of the forward pass can't change a saved trace",
                where=self.model,
                advice="omit --pair, --ablate, and the settings max_length, segments, words and ids",
            )
        return None, load(self.model)


def pasted(command: str, *words: str, options: Sequence[str] = ()) -> str:
    """A headscope command, quoted for a shell. Words that would be taken for options stand behind `--`."""
    like_options = any(word.startswith("-") and word != "-" for word in words)
    return shlex.join(["headscope", command, *((*options, "--", *words) if like_options else (*words, *options))])


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
    from headscope.traces import broken_line

    if (line := broken_line(trace)) is None:
        return 0
    tell(f"! {line}")
    return DOUBTFUL
