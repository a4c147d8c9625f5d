"""What mkdocs does beside rendering docs/: the pages that are made from the code, and those that live elsewhere in the checkout."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File

from tools import reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

#: Files of the checkout that are pages of the site; links of theirs into docs/ are links beside them there.
_ELSEWHERE: Final = {"architecture.md": "ARCHITECTURE.md", "changelog.md": "CHANGELOG.md"}

#: The first line of a block of code; what stands behind the language is for tests/docs.
_FENCE: Final = re.compile(r"^(```\w+) [^\n]*$", re.MULTILINE)


def generated_pages() -> dict[str, str]:
    """Return the pages that do not lie in docs/, by their place in the site."""
    pages = {name: (reference.ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](") for name, source in _ELSEWHERE.items()}
    pages["reference/api.md"] = reference.api_page()
    return pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: the decision records, and among the how-tos every page that is listed nowhere."""
    docs = reference.ROOT / "docs"
    sections = {name: pages for section in config.nav or [] for name, pages in section.items() if isinstance(pages, list)}
    listed = {page for pages in sections.values() for page in pages if isinstance(page, str)} | {"index.md"}
    sections["How to"].extend(page.name for page in sorted(docs.glob("*.md")) if page.name not in listed)
    sections["Decisions"].extend(f"adr/{page.name}" for page in sorted((docs / "adr").glob("*.md")))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for place, text in generated_pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave out what a block of code tells the tests and not the reader."""
    return _FENCE.sub(r"\1", markdown)
