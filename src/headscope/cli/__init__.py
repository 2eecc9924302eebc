"""The command line: parse, call, print. What is printed is made in screens/, what is known is made above it.

Start with app.py (the app), then options.py (how a command takes its options); each command is in a file of MODULES.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer.main import get_command_from_info

from headscope.cli.app import Commands, app, main

__all__ = ["app", "main"]

MODULES = {
    "look": ("shapes", "summary", "config", "fit", "head"),
    "one_text": ("attend", "verify", "predict", "view"),
    "surveys": ("survey", "compare", "pairs"),
    "explain": ("effects", "attribute", "why", "match"),
    "agents": ("mcp",),
}
"""Module of this package -> its commands, in the order of the help."""

PLACES = {name: module for module, names in MODULES.items() for name in names}


class LazyCommands(Commands):
    """The commands; each one's module is imported, and its options are built, when it is looked up.

    A command needs one module; the help, the shell's completion and a suggestion for a mistyped name need all.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name. If there is none, return None and load all for a suggestion."""
        for name in [cmd_name] if cmd_name in PLACES else PLACES:
            if name not in self.commands:
                import_module(f"headscope.cli.{PLACES[name]}")
                info = next(info for info in app.registered_commands if getattr(info.callback, "__name__", "") == name)
                self.commands[name] = get_command_from_info(
                    info, pretty_exceptions_short=app.pretty_exceptions_short, rich_markup_mode=app.rich_markup_mode
                )
        return self.commands.get(cmd_name)


app.info.cls = LazyCommands
