"""The code blocks of a page of Markdown, and the command lines in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from lastword.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
#: Every page that somebody wrote; decision records show nothing to run.
PAGES: Final = sorted(DOCS.glob("*.md"))

_BLOCK: Final = re.compile(r"^```(?P<language>\w*)(?P<how>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN: Final = re.compile(r"(?<!`)`(?P<text>lastword [^`\n]+)`(?!`)")
_OPERATORS: Final = frozenset({"|", ">", ">>", "&&", ";", "&"})


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: its language, the words behind it, its text and the line where it begins."""

    language: str
    how: frozenset[str]
    text: str
    line: int

    @property
    def runs(self) -> bool:
        """Tell whether it is run as it stands."""
        return self.language in {"python", "sql", "sh"} and "no-run" not in self.how


@dataclass(frozen=True, slots=True)
class CommandLine:
    """One command of a block of shell: as it is written, the words of its first program, and the line of the page."""

    text: str
    words: tuple[str, ...]
    line: int

    @property
    def waits(self) -> bool:
        """Tell whether it is a command of lastword's that goes on until it is stopped."""
        verb = self.words[1] if len(self.words) > 1 else ""
        return verb in {"run", "top"} or "--follow" in self.words or (verb == "materialize" and "--once" not in self.words)


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page, in order."""
    return [
        Block(found["language"], frozenset(found["how"].split()), found["text"], text.count("\n", 0, found.start()) + 2)
        for found in _BLOCK.finditer(text)
    ]


def command_lines(block: Block) -> Iterator[CommandLine]:
    """Return the commands of a block of shell; a line that ends in a backslash goes on in the next."""
    joined, began = "", block.line
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        began = began if joined else number
        joined += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        words = _words(joined)
        if words:
            yield CommandLine(joined, words, began)
        joined = ""


def _words(line: str) -> tuple[str, ...]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in _OPERATORS:
            break
        words.append(word)
    return tuple(words)


def parse(words: tuple[str, ...]) -> None:
    """Parse a command line of lastword as the command line itself does, and run nothing; raises what it would answer with exit code 2."""
    context, command, rest = None, typer.main.get_command(app), list(words)
    name = rest.pop(0)
    while hasattr(command, "commands"):
        context = command.make_context(name, list(rest), parent=context)
        name, command, rest = command.resolve_command(context, rest)  # type: ignore[attr-defined]
    command.make_context(name, rest, parent=context)


def mentions(text: str) -> list[str]:
    """Return what running text says in code spans that begin with `lastword`."""
    return [found["text"] for found in _CODE_SPAN.finditer(_BLOCK.sub("", text))]


def check_mention(text: str) -> None:
    """Raise if a code span names a command or an option that is not there; arguments may be missing."""
    command: Any = typer.main.get_command(app)
    _, *words = text.split()
    before = {name for one in command.params for name in one.opts}
    while len(words) > 1 and words[0] in before:  # an option before the command, with its value
        words = words[2:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        word = words.pop(0)
        assert word in command.commands, f"`{text}`: there is no command {word}"
        command = command.commands[word]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("-") and word not in known and not word.lstrip("-").isdigit()]
    assert not unknown, f"`{text}`: there is no {', '.join(unknown)}"
