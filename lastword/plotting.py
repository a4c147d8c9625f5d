"""The log of a topic as an SVG drawing, to scale: for notebooks and files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.compaction.errors import UserError
from lastword.status.drawing import draw_topic
from lastword.status.standing import Looker

if TYPE_CHECKING:
    from os import PathLike

    from lastword.log_dir import LogDir
    from lastword.topic import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlot:
    """The drawing of a log; a notebook shows it, `save` writes it to a file. `svg` is its text."""

    topic: str
    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | PathLike[str]) -> None:
        """Write the drawing to a file; raise `UserError` if it cannot be written."""
        try:
            Path(path).write_text(self.svg, encoding="utf-8")
        except OSError as error:
            message = f"cannot write {path}: {error.strerror}"
            raise UserError(message) from error


def plot_log(logs: LogDir[Topic], topic: str) -> LogPlot:
    """Draw the log of a topic to scale: clean, cleanable, uncleanable and active sections, readers, last stable offset.

    Raises `UnknownTopic` naming the topics that there are, and `UserError` if the log cannot be read.
    """
    standing = Looker(logs.topic(topic).log, logs.cleaner).look(now_ms=logs.clock())
    if standing.error is not None:
        raise UserError(standing.error)
    return LogPlot(topic=topic, svg=draw_topic(standing))
