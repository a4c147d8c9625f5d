"""The command line `lastword COMMAND`: it runs a command and prints errors as one message."""

from __future__ import annotations

import logging
import sys

import typer
from deltalake.exceptions import DeltaError

from lastword.cli.commands import Commands
from lastword.cli.mistakes import COMMAND_LINE, EXIT_FAILED, EXIT_USAGE
from lastword.cli.options import connection, own_this_process
from lastword.compaction.errors import InvalidConfiguration, LastwordError, in_one_line
from lastword.compaction.secrets import without_secrets
from lastword.service.signals import Stopped

app = typer.Typer(
    name="lastword",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    epilog="Exit codes: 0 done, 1 an error or a check that failed, 2 a wrong option or argument, 3 a finding (top, purge).",
)
app.callback()(connection)


def main() -> None:
    """Run the command line. A `LastwordError` is printed as one message on standard error, with exit code 1.

    So is what the storage says, which is nothing of what is stored (lastword.compaction.errors). Options and arguments that are not
    allowed end with exit code 2, as those do that typer refuses.
    """
    own_this_process()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for noisy in ("py4j", "pyspark"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        app()
    except Stopped as stopped:
        sys.stderr.write(f"{stopped}\n")
    except LastwordError as error:
        is_usage = isinstance(error, InvalidConfiguration) and error.subject == COMMAND_LINE
        lines = map(str, error.violations) if isinstance(error, InvalidConfiguration) and is_usage else [str(error)]
        sys.stderr.write("".join(f"error: {without_secrets(line)}\n" for line in lines))
        sys.exit(EXIT_USAGE if is_usage else EXIT_FAILED)
    except (OSError, DeltaError) as error:
        sys.stderr.write(f"error: {in_one_line(error)} (a file system, a network or an object store failed; no topic is damaged by that)\n")
        sys.exit(EXIT_FAILED)
