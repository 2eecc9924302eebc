"""Settings: each is declared once, as a field of a dataclass; functions take them as keywords, commands as options.

    @dataclass(frozen=True, kw_only=True)
    class SurveySettings(Declared):
        labels: Annotated[bool, Setting("Also label every head.", option="--labels")] = False

    @takes(SurveySettings)
    def survey(model: str, documents: str, settings: SurveySettings) -> Survey: ...

    survey("-", "texts/", labels=True)

A field that is annotated with a plain string is a keyword of the function alone.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, wraps
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from headscope.errors import InputError

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T")
S = ParamSpec("S")
ENTRY = re.compile(r"^( +)settings: .*\n(?:\1 +.*\n)*", re.MULTILINE)
"""The entry of a docstring that stands for all settings."""


@dataclass(frozen=True)
class Setting:
    """A setting that commands have, too.

    Attributes:
        help: its meaning, as a sentence.
        metavar: the form of its value in help, such as N; None for a flag.
        least, most: the smallest and the largest number that is allowed.
        choices: the values that are allowed; empty for any.
        option: its option on the command line; None if only `--set` reaches it.
    """

    help: str
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    option: str | None = None


Statistics = Annotated[
    str | Iterable[str] | None,
    Setting("Only these statistics, such as entropy.", metavar="NAME,NAME…", option="--statistic"),
]
"""Of all that measure heads."""


def declared(kind: Any) -> Mapping[str, tuple[Setting, Any]]:
    """Name of each Setting of a dataclass -> the setting and its type."""
    return {name: (one, of) for name, (one, of) in documented(kind).items() if isinstance(one, Setting)}


@cache
def documented(kind: Any) -> Mapping[str, tuple[Setting | str, Any]]:
    """Name of each annotated field of a dataclass -> its Setting, or its help; and its type."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: (hint.__metadata__[0], hint.__origin__) for name, hint in hints if hasattr(hint, "__metadata__")}


class Declared:
    """A dataclass of settings, which checks its values when it is made."""

    def __post_init__(self) -> None:
        """Check what the settings say about their values.

        Raises:
            InputError: a number is too small, a value is not one of the choices, or a text or a flag is none.
        """
        for name, (setting, kind) in declared(type(self)).items():
            value = getattr(self, name)
            if (kind is str and not isinstance(value, str)) or (kind is bool and value not in (True, False)):
                advice = "use a text" if kind is str else "use True or False"
                raise InputError(f"{name} is {value!r:.40}", where=name, advice=advice)
            if value is None:
                continue
            if setting.least is not None:
                object.__setattr__(self, name, whole(value, name, setting.least, setting.most))
            if setting.choices and value not in setting.choices:
                advice = f"use one of {', '.join(setting.choices)}"
                raise InputError(f"unknown {name} {value!r:.40}", where=name, advice=advice)


def whole(value: Any, where: str, least: int, most: int | None = None) -> int:
    """Return a whole number, of NumPy too, as Python's.

    Args:
        value: what was given.
        where: the argument's name.
        least: the lower end of the range.
        most: its upper end; None for none.

    Raises:
        InputError: it is no whole number, or out of the range.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        advice = f"use a whole number of at least {least}" + ("" if most is None else f", at most {most}")
        raise InputError(f"{where} is {value!r:.40}", where=where, advice=advice)
    return number


def named(function: Callable[S, R]) -> Callable[S, R]:
    """Let a function whose options are misspelt say which one is meant, by its public name."""

    @wraps(function)
    def call(*args: S.args, **options: S.kwargs) -> R:
        known = inspect.signature(function).parameters
        if not options.keys() <= known.keys():
            wrong = next(name for name in options if name not in known)
            raise misspelt(TypeError(f"got an unexpected keyword argument '{wrong}'"), function.__name__, known)
        return function(*args, **options)

    return call


def misspelt(error: TypeError, name: str, known: Iterable[str]) -> TypeError:
    """Return the error of a call with the function's public name, and with the option that may be meant."""
    message = str(error).removeprefix(f"{name}() ")
    wrong = re.search(r"unexpected keyword argument '(.*)'", message)
    if wrong and wrong[1] == "tokenizer":
        return TypeError(f"{name}() {message}; hs.open(model, tokenizer=tokenizer) takes it")
    return TypeError(f"{name}() {message}{meant(wrong[1], known) if wrong else ''}")


def meant(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the closest of the known names; empty if none is close."""
    close = get_close_matches(name, [*known], 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def takes(kind: Callable[S, T]) -> Callable[[Callable[[A, B, T], R]], Callable[Concatenate[A, B, S], R]]:
    """Let a function of two arguments and settings take each setting as a keyword.

    The function's signature and docstring list the settings as if they were its own; an entry `settings:` in the
    docstring marks their place.

    Args:
        kind: a dataclass of keywords.
    """
    keywords = inspect.signature(kind).parameters
    types = get_type_hints(kind)

    def decorate(function: Callable[[A, B, T], R]) -> Callable[Concatenate[A, B, S], R]:
        first = list(inspect.signature(function).parameters.values())[:2]
        named = [
            one.replace(annotation=inspect.formatannotation(types[one.name]).replace("collections.abc.", ""))
            for one in keywords.values()
        ]
        signature = inspect.signature(function).replace(parameters=[*first, *named])

        @wraps(function)
        def call(*args: Any, **options: Any) -> R:
            try:
                given = signature.bind(*args, **options).arguments
            except TypeError as error:
                raise misspelt(error, function.__name__, signature.parameters) from None
            a, b = (given.pop(one.name) for one in first)
            return function(a, b, kind(**given))  # type: ignore[call-arg]  # bound to its signature

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = ENTRY.sub(lambda found: _entries(kind, found[1]), function.__doc__ or "")
        return call

    return decorate


def _entries(kind: Any, indent: str) -> str:
    """The settings of a class as entries of a docstring."""
    helps = {name: one.help if isinstance(one, Setting) else one for name, (one, _) in documented(kind).items()}
    return "".join(f"{indent}{name}: {text}\n" for name, text in helps.items())
