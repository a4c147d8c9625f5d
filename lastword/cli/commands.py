"""Which commands there are, and the module of each: it is imported when its command runs, or when help is shown.

```
 lastword topics list     imports lastword.cli.topics alone        lastword --help    imports all of them
```

So a quick command does not wait for imports that other commands need, such as the HTTP server of `run`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

#: For each command and group of commands: its module below `lastword.cli`, and its name in that module. In the order of the help.
_MODULES: Final = {
    "latest": ("readers", "latest"),
    "get": ("keys", "get"),
    "sql": ("sql", "sql"),
    "table": ("readers", "table"),
    "changes": ("readers", "changes"),
    "materialize": ("readers", "materialize"),
    "purge": ("purge", "purge"),
    "top": ("operate", "top"),
    "plot": ("operate", "plot"),
    "records": ("records", "records"),
    "dead-letters": ("records", "dead_letters"),
    "roll": ("cleaning", "roll"),
    "clean": ("cleaning", "clean"),
    "explain": ("cleaning", "explain"),
    "receipts": ("cleaning", "receipts"),
    "pause": ("cleaning", "pause"),
    "resume": ("cleaning", "resume"),
    "retention": ("cleaning", "retention"),
    "delete-records": ("cleaning", "delete_records"),
    "verify": ("records", "verify"),
    "append": ("run", "append"),
    "run": ("run", "run"),
    "topics": ("topics", "topics_app"),
    "queries": ("topics", "queries_app"),
    "transactions": ("transactions", "transactions_app"),
    "readers": ("readers", "readers_app"),
    "sources": ("sources", "sources_app"),
    "tables": ("typed_tables", "tables_app"),
}
#: What is allowed where a value has the wrong type, by pydantic's name of the error.
_ALLOWED: Final = {
    "int_parsing": "allowed is a whole number",
    "float_parsing": "allowed is a number",
    "bool_parsing": "allowed are true and false",
}


def _load(name: str) -> Any:
    """Import the module of a command or group, and return what typer makes of it."""
    module, attribute = _MODULES[name]
    loaded = getattr(import_module(f"lastword.cli.{module}"), attribute)
    holder = typer.Typer()
    holder.callback()(lambda: None)  # with it typer makes a group, however few commands there are
    if isinstance(loaded, typer.Typer):
        holder.add_typer(loaded, name=name)
    else:
        holder.command(name)(loaded)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


class _LazyCommands(dict[str, Any]):
    """A dict of the commands by name that imports a command when it is looked up."""

    def __init__(self) -> None:
        """Begin with the names of all commands; none is imported yet."""
        super().__init__(dict.fromkeys(_MODULES))

    def __getitem__(self, name: str) -> Any:
        """Return a command; import it the first time."""
        command = super().__getitem__(name)
        if command is None:
            command = self[name] = _load(name)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command, or `default` if no command has that name."""
        if name not in self:
            return default
        return self[name]

    def items(self) -> Any:
        """Return all commands with their names."""
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        """Return all commands."""
        return [self[name] for name in self]


class Commands(TyperGroup):
    """The group of all commands. If the value of an option has the wrong type, its error names the value and what is allowed."""

    def __init__(self, **settings: Any) -> None:
        """Take typer's settings of the group; its commands are those of this module."""
        super().__init__(**settings)
        self.commands = _LazyCommands()

    def invoke(self, ctx: Any) -> Any:
        """Run a command; raise typer's `BadParameter` for a wrong value, which pydantic's words alone would not name."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                first = error.__cause__.errors()[0]
                error.message = f"{first['input']!r}: {_ALLOWED.get(first['type'], first['msg'])}"
            raise
