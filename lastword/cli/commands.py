"""Which commands there are, and the module of each: it is imported when its command runs, or when help is shown.

```
 lastword topics list     imports lastword.cli.topics alone        lastword --help    imports all of them
```

A command that is quick would else pay for the imports of the slow ones: the HTTP server of `run`, the page of `top`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

#: The module of `lastword.cli` and the name there of each group and command, in the order of the help.
_PLACES: Final = {
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
    """Import the module of a command, and return the command as typer makes it."""
    module, attribute = _PLACES[name]
    made = getattr(import_module(f"lastword.cli.{module}"), attribute)
    if not isinstance(made, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(made)
        made = alone
    command = typer.main.get_command(made)
    command.name = name
    return command


class _Loaded(dict[str, Any]):
    """The commands by name; each is made when somebody asks for it."""

    def __init__(self) -> None:
        """Know the names."""
        super().__init__(dict.fromkeys(_PLACES))

    def __getitem__(self, name: str) -> Any:
        """Return a command."""
        command = super().__getitem__(name)
        if command is None:
            command = self[name] = _load(name)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command, or `default` where there is none of that name."""
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
    """The commands: an option whose value has the wrong type is told with the value and what is allowed."""

    def __init__(self, **settings: Any) -> None:
        """Take typer's settings of the group; its commands are those of this module."""
        super().__init__(**settings)
        self.commands = _Loaded()

    def invoke(self, ctx: Any) -> Any:
        """Run a command; raise typer's `BadParameter` for a wrong value, which pydantic's words alone would not name."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                first = error.__cause__.errors()[0]
                error.message = f"{first['input']!r}: {_ALLOWED.get(first['type'], first['msg'])}"
            raise
