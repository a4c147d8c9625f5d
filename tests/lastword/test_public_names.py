"""`from lastword import …`: everything that a user needs, imported when it is asked for."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lastword
from lastword.compaction import errors
from lastword.storage.files import row_files


def test_every_public_name_is_there_and_is_shown() -> None:
    """A name that is not there is an AttributeError, as in any module."""
    assert set(lastword.__all__) <= set(dir(lastword))
    assert all(getattr(lastword, name) is not None for name in lastword.__all__)
    with pytest.raises(AttributeError, match="no attribute 'LogDirr'"):
        lastword.LogDirr  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_installed_distribution() -> None:
    """pyproject.toml is where it is written, once."""
    assert lastword.__version__ == version("lastword")


def test_files_without_their_metadata_have_no_version_and_write_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source tree on PYTHONPATH: whoever meets what it wrote is told that its version is not known."""

    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    for module in (lastword, row_files):
        monkeypatch.setattr(module, "version", unknown)
    monkeypatch.delitem(vars(lastword), "__version__", raising=False)
    row_files.installed_version.cache_clear()
    try:
        assert lastword.__version__ == "unknown"
        topic = lastword.LogDir(tmp_path).create_topic("fruit")
        [path] = Path(topic.log.paths.ledger).glob("*.parquet")
        assert row_files.writer_of(pq.read_table(path)) == "unknown"
    finally:
        monkeypatch.undo()
        vars(lastword).pop("__version__", None)
        row_files.installed_version.cache_clear()
    assert lastword.__version__ == version("lastword")


def test_every_error_is_public() -> None:
    """Each error that a method can raise is importable from `lastword`."""
    found = {name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, Exception)}

    assert found <= set(lastword.__all__)


@pytest.mark.parametrize(
    "owner", [lastword.LogDir, lastword.ArrowTopic, lastword.SparkTopic, lastword.Transaction], ids=lambda one: str(one.__name__)
)
def test_whatever_a_public_method_returns_is_public(owner: type) -> None:
    """Results, positions, receipts; what is for tools and tests alone is named here."""
    internal = {"log", "cleaner", "idle_cleaner"}
    foreign = {"DataFrame", "Iterator", "LazyFrame", "Mapping", "None", "RecordBatch", "SparkSession", "StreamingQuery", "T", "Table"}
    foreign |= {"TopicT_co"}  # the topics of the engine
    returned = set()
    for name, one in inspect.getmembers(owner, lambda one: inspect.isfunction(one) or isinstance(one, property)):
        function = one.fget if isinstance(one, property) else one
        if not name.startswith("_") and name not in internal:
            returned |= set(re.findall(r"[A-Z]\w+", function.__annotations__.get("return", "")))

    assert returned - foreign <= set(lastword.__all__)
