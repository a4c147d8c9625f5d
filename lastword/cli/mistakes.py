"""Exit codes, and the error of a command line that cannot be carried out as it is written (docs/formats-and-stability.md#exit-codes)."""

from __future__ import annotations

from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from lastword.compaction.errors import InvalidConfiguration, Violation

#: What `InvalidConfiguration` names for options and arguments of a command that are not allowed.
COMMAND_LINE: Final = "the command line"
#: An option whose values may be secrets.
STORAGE_OPTION: Final = "--storage-option"
#: An error, or a check that failed.
EXIT_FAILED: Final = 1
#: A wrong option or argument.
EXIT_USAGE: Final = 2
#: Done, with a finding.
EXIT_FINDING: Final = 3


def usage_mistake(*, name: str, value: str, allowed: str) -> InvalidConfiguration:
    """Return the error of an option or argument whose value is not allowed; the command ends with exit code 2."""
    return InvalidConfiguration(COMMAND_LINE, [Violation(key=name, value=value, allowed=allowed)])


#: What is allowed where a value has the wrong type, by pydantic's name of the error.
_ALLOWED: Final = {
    "int_parsing": "allowed is a whole number",
    "float_parsing": "allowed is a number",
    "bool_parsing": "allowed are true and false",
}


class Commands(TyperGroup):
    """The commands: an option whose value has the wrong type is told with the value and what is allowed."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; raise typer's `BadParameter` for a wrong value, which pydantic's words alone would not name."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                first = error.__cause__.errors()[0]
                error.message = f"{first['input']!r}: {_ALLOWED.get(first['type'], first['msg'])}"
            raise
