"""Options: those that several commands share, `--set`, and how a command takes them all."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from headscope.checkpoint.tokenizer.known import SEGMENTS
from headscope.cli.app import tell
from headscope.errors import InputError
from headscope.screens.values import shortened, whole_number
from headscope.settings import Setting, declared, documented, whole

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
FORMS = ("json", "csv", "markdown")
NAMED = 5
"""Most settings that the help of `--set` names."""


ORDER = {"model": 0, "text": 1, "pair": 3, "ablate": 3, "set": 4, "form": 5, "as_json": 5}
"""Places of arguments and options that many commands share; a command's own options are at 2."""


def number(text: object) -> int:
    """Parse a whole number. typer's own parser would accept numbers of any size, which the library doesn't expect."""
    value = whole_number(str(text).strip())
    if value is None:
        raise typer.BadParameter(f"{shortened(str(text))} is not a whole number of at most 18 digits")
    return value


def rows(text: object) -> int:
    """Parse `--top`."""
    return whole(number(text), "--top", 1)


def argument(metavar: str, meaning: str, completion: Callable[[str], list[str]] | None = None) -> Any:
    """An argument of a command, with its form and its help."""
    return typer.Argument(metavar=metavar, show_default=False, help=meaning, autocompletion=completion)


def option(name: str, metavar: str, meaning: str, **more: Any) -> Any:
    """An option of a command that takes a value of this form, with its help; `more` as typer has it."""
    return typer.Option(name, metavar=metavar, help=meaning, **more)


MODEL = "A hub id, also as NAME@REVISION; a folder, a file, or - for the bundled model."
ModelName = Annotated[str, argument("MODEL", MODEL)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Heads = Annotated[str | None, option("--heads", "L.H,L", "Select heads and layers, counted from 0: 3.1,4.0 or 3.")]
OUT = option(
    "--out", "DIR", "Folder to write to. Run the same command again to resume an interrupted run.", show_default=False
)
Top = Annotated[
    int | None, option("--top", "N", "List at most N: rows, keys of a query, or tokens at a mask.", parser=rows)
]
Html = Annotated[Path | None, option("--html", "FILE", "Also write what is shown as one offline HTML file.")]
Parquet = Annotated[Path | None, option("--parquet", "FILE", "Also write the complete table as Parquet.")]
Save = Annotated[Path | None, option("--save", "FILE", "Also write the complete numbers to a file.")]
Segments = Annotated[
    str | None, Setting("Segments of a pair: those of its own tokenizer, one, or two.", "KIND", choices=SEGMENTS)
]
MaxLength = Annotated[int | None, Setting("Cut texts to at most N tokens.", metavar="N", least=1)]


@dataclass(frozen=True)
class Form:
    """The form of the output: by default a screen, otherwise one of these."""

    form: Annotated[
        Literal["json", "csv", "markdown"] | None,
        option(
            "--as",
            "FORM",
            "Print json, csv or markdown instead of a screen. --json, --csv and --markdown are short for it.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False
    as_csv: Annotated[bool, typer.Option("--csv", hidden=True)] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", hidden=True)] = False

    def __post_init__(self) -> None:
        """Raise InputError, before anything is computed, if more than one form is given."""
        if len(names := self._names()) > 1:
            raise InputError(f"{' and '.join(names)} exclude each other", where=names[1], advice="use one of them")

    @property
    def name(self) -> str | None:
        """The form as an option, such as --json, or None for a screen."""
        return next(iter(self._names()), None)

    def _names(self) -> list[str]:
        flags = (self.as_json, self.as_csv, self.as_markdown)
        return [f"--{name}" for name, on in zip(FORMS, flags, strict=True) if on or name == self.form]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the fields of a command's dataclasses, such as its Request and its Form, into its arguments and options.

    MODEL and TEXT come first, then the command's own options in their order, then `--set` for the settings that have no
    option, and what all commands share: their forms of output.
    """
    own = inspect.signature(command, eval_str=True).parameters
    hints = {name: parameter.annotation for name, parameter in own.items()}
    classes = {name: hints[name] for name in own if is_dataclass(hints[name])}
    settings = {name: found for kind in classes.values() for name, found in declared(kind).items()}
    names = {name: {one.name for one in _parameters_of(kind)} | {*declared(kind)} for name, kind in classes.items()}
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name not in classes:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
        else:
            parameters.extend(_parameters_of(classes[name]))
    parameters += _settings_parameters(settings)
    parameters.sort(key=lambda one: ORDER.get(one.name, 2))
    signature = inspect.Signature(parameters)

    @wraps(command)
    def spread(**arguments: Any) -> None:
        arguments |= _given(settings, arguments)
        for name, kind in classes.items():
            arguments[name] = kind(**{one: arguments.pop(one) for one in names[name] if one in arguments})
        command(**arguments)

    spread.__signature__ = signature  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@cache
def _parameters_of(kind: Any) -> tuple[inspect.Parameter, ...]:
    """The fields of a class that are arguments or options of their own, as keyword-only parameters."""
    types, settings, known = get_type_hints(kind, include_extras=True), declared(kind), documented(kind)
    parameters = []
    for field in fields(kind):
        annotation, default = types[field.name], field.default
        if field.name in settings:
            setting, of = settings[field.name]
            if setting.option is None:
                continue
            kinds = (of, *get_args(of))
            whole = int in kinds and bool not in kinds
            own = typer.Option(
                setting.option, metavar=setting.metavar, help=setting.help, parser=number if whole else None
            )
            annotation = Annotated[(bool if bool in kinds else int | None if whole else str | None), own]
        elif isinstance(known.get(field.name, (None,))[0], str):  # of Python alone
            continue
        parameters.append(_keyword(field.name, annotation, inspect.Parameter.empty if default is MISSING else default))
    return tuple(parameters)


def _settings_parameters(settings: Mapping[str, tuple[Setting, Any]]) -> list[inspect.Parameter]:
    """`--set`, if there are settings that only it reaches."""
    rare = [(name, setting) for name, (setting, _) in settings.items() if setting.option is None]
    if not rare:
        return []
    names = ", ".join(f"{name}={setting.metavar or 'true|false'}" for name, setting in rare[:NAMED])
    more = ", …" if len(rare) > NAMED else ""
    text = f"Change a setting: {names}{more} (repeatable; an unknown name lists all)."
    return [_keyword("set", Annotated[list[str] | None, option("--set", "NAME=VALUE", text)])]


def _given(settings: Mapping[str, tuple[Setting, Any]], arguments: dict[str, Any]) -> dict[str, Any]:
    """Take `--set` out of the arguments, and return the settings that it gives.

    Raises:
        InputError: an unknown setting, one that is given twice, or a value of another kind.
    """
    given: dict[str, Any] = {}
    for text in arguments.pop("set", None) or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if name not in settings or not equals:
            _list_settings(settings)
            found = f"{shortened(name)} has no value" if name in settings else f"there is no setting {shortened(name)}"
            raise InputError(
                found, where=f"--set {shortened(text)}", advice="use one of those above, as --set NAME=VALUE"
            )
        if name in given:
            raise InputError(f"{name} is set twice", where=f"--set {shortened(text)}", advice="set it once")
        given[name] = _value(name, settings[name][1], value)
    for name, (_, of) in settings.items():
        if isinstance(arguments.get(name), str):  # an option's own value
            arguments[name] = _value(name, of, arguments[name])
    return given


def _list_settings(settings: Mapping[str, tuple[Setting, Any]]) -> None:
    """Print every setting with its help on stderr."""
    width = max(len(name) + len(setting.metavar or "true") + 1 for name, (setting, _) in settings.items())
    for name, (setting, _) in settings.items():
        shown = f"{name}={setting.metavar or 'true|false'}"
        tell(f"  {shown:{width}}  {setting.help}")


def _value(name: str, of: Any, text: str) -> Any:
    """A setting's value from its text.

    Raises:
        InputError: the text is of another kind than the setting.
    """
    kinds = (of, *get_args(of))
    value: Any
    if bool in kinds and (text.lower() in TRUTH or str not in kinds):
        value, expected = TRUTH.get(text.lower()), "true or false"
    elif any(get_origin(kind) is collections.abc.Iterable for kind in kinds):
        value, expected = [part.strip() for part in text.split(",")], "names"
    elif float in kinds:
        value, expected = None, "a number"
        with suppress(ValueError):
            value = float(text)
    elif int in kinds:
        value, expected = whole_number(text), "a whole number of at most 18 digits"
    else:
        value, expected = text, "a text"
    if value is None:
        raise InputError(f"{shortened(text)} is not {expected}", where=name, advice=f"set {name} to {expected}")
    return value
