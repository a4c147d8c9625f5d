"""What strangers do to the Delta log of a table: commits by hand, replaced ones, old ones cleaned away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def commit_path(location: str, version: int) -> Path:
    """Return the file of a commit."""
    return Path(location) / f"_delta_log/{version:020}.json"


def versions(location: str) -> list[int]:
    """Return the versions whose commits are there."""
    return sorted(int(path.stem) for path in (Path(location) / "_delta_log").glob("*.json") if path.stem.isdigit())


def actions_of(location: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit."""
    return [json.loads(line) for line in commit_path(location, version).read_text().split("\n") if line]


def commit(location: str, *actions: Mapping[str, Any], operation: str = "WRITE", version: int | None = None) -> int:
    """Commit as a stranger, at a version or the next one; what is there is replaced."""
    number = versions(location)[-1] + 1 if version is None else version
    write(location, number, [{"commitInfo": {"timestamp": 1, "operation": operation, "operationParameters": {}}}, *actions])
    return number


def write(location: str, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    """Write the text of a commit."""
    commit_path(location, version).write_text("".join(json.dumps(one) + "\n" for one in actions))


def commit_a_transaction(location: str) -> int:
    """Commit nothing but the version of a stranger's application."""
    return commit(location, {"txn": {"appId": "a stranger", "version": 1}}, operation="STREAMING UPDATE")


def newest(location: str, kind: str) -> dict[str, Any]:
    """Return the body of the newest action of a kind that is not in a checkpoint alone."""
    for version in reversed(versions(location)):
        for action in actions_of(location, version):
            if kind in action:
                body: dict[str, Any] = action[kind]
                return body
    raise KeyError(kind)


def forget_old_commits(location: str) -> None:
    """Clean away the commits below the last checkpoint, and below the last commit of ours."""
    last = json.loads((Path(location) / "_delta_log/_last_checkpoint").read_text())["version"]
    ours = [version for version in versions(location) if "lastword" in commit_path(location, version).read_text()]
    for version in versions(location):
        if version < min(last, ours[-1] if ours else last):
            commit_path(location, version).unlink()
