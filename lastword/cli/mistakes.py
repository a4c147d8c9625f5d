"""Exit codes, and the error of a command line that cannot be carried out as it is written (docs/formats-and-stability.md#exit-codes)."""

from __future__ import annotations

from typing import Final

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
