"""Every citation leads somewhere: to a rule, a page, a decision record, a module or a file of this checkout.

```
 citation                          leads to
 docs/semantics.md#3.2             a page, and in it `<a id="3.2"></a>`, a heading with `{ #3.2 }`, or the slug of a heading
 [rule A.7](../semantics.md#A.7)   the same, seen from the page that has the link
 ADR 0013                          docs/adr/0013-….md
 `lastword.topic.Topic.append`     a module, and a name in its source
 `TopicLog.snapshot`               a member of a class of the product, or of one that it inherits from
 `storage/delta/commit.py`         a file or a folder
```

The checker reads sources and imports none of them. This file cites what is not there, so the checker leaves it out.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.test_tidy import PACKAGES, ROOT, text_files

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOP: Final = (*PACKAGES, "tests", "tools", "benchmarks", "examples")
_FOLDERS: Final = (*_TOP, "docs", "conf")

#: The number of a rule contains dots; a dot at the end of a sentence is not a part of it.
_ANCHOR: Final = r"#(?P<anchor>[\w-]+(?:\.[\w-]+)*)"
_PAGE: Final = re.compile(rf"(?<![\w/.:-])(?P<page>docs/[\w./-]+?\.md)\b(?:{_ANCHOR})?")
_LINK: Final = re.compile(rf"\]\((?![a-z]+:)(?P<page>[^)#\s]*)(?:{_ANCHOR})?\)")
#: A line may break between the word and its number, also in a comment.
_RECORD: Final = re.compile(r"\bADRs?(?:\s|#:?\s)+(?P<numbers>\d+(?:(?:, | and |, and )\d{4}\b)*)")
#: A link names the record in its text and in its target.
_RECORD_LINK: Final = re.compile(r"\[ADR\s(?P<said>\d+)\]\([^)]*?(?P<meant>\d{4})-")
_SPAN: Final = re.compile(r"(?<!`)`(?P<text>[^`\n]+)`(?!`)")
_DOTTED: Final = re.compile(rf"(?P<name>(?:{'|'.join(_TOP)})(?:\.\w+)+)(?:\(.*\))?")
_MEMBER: Final = re.compile(r"(?P<owner>_?[A-Z]\w*[a-z]\w*)\.(?P<member>[a-z_]\w*)(?:\(.*\))?")
_PATH: Final = re.compile(rf"(?:{'|'.join(_FOLDERS)})/[\w./*-]*")
#: A file is a citation also without backticks.
_FILE: Final = re.compile(
    rf"(?<![\w/.<>*$}}-])(?:{'|'.join(_FOLDERS)})/[\w./-]+\.(?:py|md|toml|ya?ml|json|lock|sh|css|js|html|xml|properties)\b"
)
_BARE_FILE: Final = re.compile(r"\w+\.(?:py|md)")
#: Documents that a reader of the checkout does not have.
_ELSEWHERE: Final = re.compile(r"§|\b(?:SEMANTICS|DESIGN)\b")
#: Only `docs/semantics.md` speaks so of its own sections; another file names the page and the anchor.
_RULES: Final = "docs/semantics.md"
_LETTER: Final = re.compile(r"\bsections? [A-Z]\b")

_HEADING: Final = re.compile(r"#{1,6}\s+(?P<title>.*?)\s*(?:\{\s*#(?P<anchor>\S+)\s*\})?\s*")
_ID: Final = re.compile(r"<a id=\"([^\"]+)\">")

#: Pages of the site that lie elsewhere in the checkout (tools/mkdocs_hooks.py).
_PAGES_ELSEWHERE: Final = {"docs/architecture.md": "ARCHITECTURE.md", "docs/changelog.md": "CHANGELOG.md"}
#: Pages that are made from the code; the build of the site checks links to them (tests/docs/test_site.py).
_MADE: Final = "docs/reference/"
#: No citations: an option of `format("lastword")`, what stands for the name of a logger, a file that a test makes up.
_NO_CITATIONS: Final = {"storage.aws_region", "lastword.NAME", "tests/test_made_up.py"}


def slug(title: str, taken: set[str] | None = None) -> str:
    """Return the anchor that Markdown's toc gives to a heading; `taken` are those of the headings before it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", title)
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    found = first = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
    number = 0
    while found in (taken or ()):
        number += 1
        found = f"{first}_{number}"
    return found


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page of Markdown."""
    found: set[str] = set()
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.lstrip().startswith("```")
        if fenced:
            continue
        found.update(_ID.findall(line))
        if heading := _HEADING.fullmatch(line):
            found.add(heading["anchor"] or slug(heading["title"], found))
    return frozenset(found)


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, with those below `if` and `try`."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody") if isinstance(node, (ast.If, ast.Try)) else ():
            yield from _statements(getattr(node, part, []))


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _names(node: ast.AST) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.name}
    return {one.id for one in _targets(node) if isinstance(one, ast.Name)}


def _members(node: ast.ClassDef) -> set[str]:
    """Return the names in the body of a class, and the attributes that its methods set."""
    inside = [one for method in node.body if isinstance(method, ast.FunctionDef) for one in ast.walk(method)]
    attributes = {target.attr for one in inside for target in _targets(one) if isinstance(target, ast.Attribute)}
    return attributes.union(*(_names(one) for one in node.body))


@dataclass(frozen=True, slots=True)
class Checkout:
    """What citations of one checkout may lead to."""

    root: Path

    def complaints(self, file: str, text: str) -> list[str]:
        """Return `file:line: what is wrong` for each citation of a text that leads nowhere; `file` is its path in the checkout."""
        found = chain(
            self._documents_elsewhere(file, text),
            self._pages(text),
            self._links(file, text),
            self._records(text),
            self._spans(text),
            self._files(text),
        )
        wrong = sorted({(text.count("\n", 0, at) + 1, what) for at, what in found})
        return [f"{file}:{line}: {what}" for line, what in wrong]

    def has_name(self, dotted: str) -> bool:
        """Tell whether a dotted name is a module, or a name that the source of a module has; a class has its members."""
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            base = self.root.joinpath(*parts[:count])
            for module in (base / "__init__.py", base.with_suffix(".py")):
                if module.is_file():
                    return self._has(module, parts[count:])
        return False

    def _has(self, module: Path, names: list[str]) -> bool:
        if not names:
            return True
        first, *rest = names
        for node in _statements(_tree(module).body):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if first == (alias.asname or alias.name):
                        return self.has_name(".".join([str(node.module), alias.name, *rest]))
            elif first in _names(node):
                return not rest or (isinstance(node, ast.ClassDef) and rest[0] in _members(node))
        return False

    def _documents_elsewhere(self, file: str, text: str) -> Iterator[tuple[int, str]]:
        for found in chain(_ELSEWHERE.finditer(text), () if file == _RULES else _LETTER.finditer(text)):
            yield found.start(), f"{found[0]} cites a document that is not in the checkout"

    def _page(self, page: str, anchor: str | None) -> str | None:
        """Return what is wrong with a page and an anchor in it."""
        path = self.root / _PAGES_ELSEWHERE.get(page, page)
        if page.startswith(_MADE):
            return None
        if not path.exists():
            return f"there is no {page}"
        if anchor is not None and anchor not in anchors(path):
            return f"{page} has no anchor #{anchor}"
        return None

    def _pages(self, text: str) -> Iterator[tuple[int, str]]:
        for found in _PAGE.finditer(text):
            if wrong := self._page(found["page"], found["anchor"]):
                yield found.start(), wrong

    def _links(self, file: str, text: str) -> Iterator[tuple[int, str]]:
        if not file.endswith(".md"):
            return
        for found in _LINK.finditer(text):
            here = self.root / file
            target = (here.parent / found["page"]).resolve() if found["page"] else here.resolve()
            if not target.is_relative_to(self.root.resolve()):
                yield found.start(), f"{found['page']} leads out of the checkout"
            elif wrong := self._page(target.relative_to(self.root.resolve()).as_posix(), found["anchor"]):
                yield found.start(), wrong

    def _records(self, text: str) -> Iterator[tuple[int, str]]:
        for found in _RECORD.finditer(text):
            for number in re.findall(r"\d+", found["numbers"]):
                if len(number) != len("0000"):
                    yield found.start(), f"ADR {number} is written with four digits"
                elif not any((self.root / "docs" / "adr").glob(f"{number}-*.md")):
                    yield found.start(), f"there is no ADR {number}"
        for found in _RECORD_LINK.finditer(text):
            if int(found["said"]) != int(found["meant"]):
                yield found.start(), f"the link ADR {found['said']} leads to ADR {found['meant']}"

    def _spans(self, text: str) -> Iterator[tuple[int, str]]:
        """Check what stands in backticks: modules, paths and files."""
        for found in _SPAN.finditer(text):
            span = found["text"]
            if span in _NO_CITATIONS or self._is_file(span):
                continue
            if (member := _MEMBER.fullmatch(span)) and not self._has_member(member["owner"], member["member"]):
                yield found.start(), f"the class {member['owner']} has no {member['member']}"
            if dotted := _DOTTED.fullmatch(span):
                if not self.has_name(dotted["name"]):
                    yield found.start(), f"there is no module or name {dotted['name']}"
            elif _BARE_FILE.fullmatch(span) or (_PATH.fullmatch(span) and not any(self.root.glob(span.strip("/")))):
                yield found.start(), f"there is no {span}"

    def _files(self, text: str) -> Iterator[tuple[int, str]]:
        for found in _FILE.finditer(text):
            if found[0] not in _NO_CITATIONS and not (self.root / found[0]).exists():
                yield found.start(), f"there is no {found[0]}"

    def _has_member(self, owner: str, member: str) -> bool:
        """Return whether a class of the product has a member; True for a class that is not the product's."""
        classes = _classes(self.root)
        if owner not in classes:
            return True
        return any(
            member in _members(node) or any(isinstance(base, ast.Name) and self._has_member(base.id, member) for base in _bases(node))
            for node in classes[owner]
        )

    def _is_file(self, name: str) -> bool:
        return any(path.name == name for path in _all_files(self.root))


def _bases(node: ast.ClassDef) -> list[ast.expr]:
    """Return the base classes of a class, of a generic one without its parameters."""
    return [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]


@cache
def _classes(root: Path) -> dict[str, list[ast.ClassDef]]:
    """Return the classes of the product by name; several modules may have one of a name."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for package in PACKAGES:
        for module in sorted((root / package).rglob("*.py")):
            for node in ast.walk(_tree(module)):
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, []).append(node)
    return classes


@cache
def _all_files(root: Path) -> tuple[Path, ...]:
    return tuple(text_files(root))


def test_every_citation_leads_somewhere() -> None:
    """A citation that leads nowhere sends somebody looking for it."""
    checkout = Checkout(ROOT)
    found: list[str] = []
    for path in _all_files(ROOT):
        if path != Path(__file__).resolve():
            found += checkout.complaints(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace"))

    assert not found, "\n".join(found)


def test_no_page_has_an_anchor_twice() -> None:
    """A citation of the second one would lead to the first."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        anchors = re.findall(r'<a id="([^"]+)"', page.read_text(encoding="utf-8"))
        assert sorted(set(anchors)) == sorted(anchors), page.name


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a small checkout: a page, a decision record, two modules, one of them behind a link."""
    files = {
        "docs/page.md": '# Page { #top }\n<a id="A.7"></a>A.7\n## `code` and *more*\n## Twice\n## Twice\n```\n## Not this\n```\n',
        "docs/adr/0007-made-up.md": "# 0007. Made up\n",
        "lastword/__init__.py": "if TYPE_CHECKING:\n    from lastword.topic import Topic\n",
        "lastword/topic.py": "LIMIT = 1\nclass Topic:\n    name: str\n    def append(self):\n        self.log = local = 2\n",
        "storage/commit.py": "def commit(): ...\n",
        "conf/lastword.toml": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "lastword" / "storage").symlink_to("../storage")
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "docs/page.md",
        "Rule: docs/page.md#A.7.",
        "docs/page.md#top, docs/page.md#code-and-more",
        "docs/page.md#twice and docs/page.md#twice_1",
        "ADR 0007",
        "(ADR 0007, 0007)",
        "# as it stands in ADR\n# 0007",
        "`lastword.Topic`, `lastword.Topic.append()`",
        "`lastword.topic.LIMIT`, `lastword.topic.Topic.name`, `lastword.topic.Topic.log`",
        "`Topic.append`, `Topic.name`, `Topic.append(rows)`, `DataFrame.collect`",
        "`lastword.storage.commit.commit`",
        "`storage/commit.py`, `storage/`, `docs/*.md`, `commit.py`, `lastword.toml`",
        "conf/lastword.toml",
        "https://example.com/docs/elsewhere.md",
        "`retention.ms`, `data/log`, <log.dir>/storage/x.py, a design, SEMANTICS_OF",
    ],
)
def test_a_citation_that_leads_somewhere_is_no_complaint(checkout: Checkout, text: str) -> None:
    """Text that only looks like a citation is no complaint either."""
    assert checkout.complaints("made_up.py", text) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("docs/none.md", "there is no docs/none.md"),
        ("docs/page.md#A.8", "docs/page.md has no anchor #A.8"),
        ("docs/page.md#not-this", "docs/page.md has no anchor #not-this"),
        ("docs/page.md#page", "docs/page.md has no anchor #page"),
        ("ADR 0008", "there is no ADR 0008"),
        ("ADR 0007 and 0009", "there is no ADR 0009"),
        ("ADR 7", "ADR 7 is written with four digits"),
        ("[ADR 0007](adr/0011-other.md)", "the link ADR 0007 leads to ADR 0011"),
        ("`lastword.topics`", "there is no module or name lastword.topics"),
        ("`lastword.topic.Topic.clean`", "there is no module or name lastword.topic.Topic.clean"),
        ("`lastword.topic.Topic.local`", "there is no module or name lastword.topic.Topic.local"),
        ("`lastword.topic.append`", "there is no module or name lastword.topic.append"),
        ("`Topic.clean`", "the class Topic has no clean"),
        ("`Topic.clean(force)`", "the class Topic has no clean"),
        ("`storage.decisions`", "there is no module or name storage.decisions"),
        ("`storage/delta/commit.py`", "there is no storage/delta/commit.py"),
        ("storage/delta/commit.py", "there is no storage/delta/commit.py"),
        ("`storage/delta/`", "there is no storage/delta/"),
        ("`swap.py`", "there is no swap.py"),
        ("SEMANTICS A", "SEMANTICS cites a document that is not in the checkout"),
        ("the lock (§5)", "§ cites a document that is not in the checkout"),
        ("as in section B", "section B cites a document that is not in the checkout"),
    ],
)
def test_a_citation_that_leads_nowhere_is_found(checkout: Checkout, text: str, what: str) -> None:
    """The complaint names the file and the line."""
    assert checkout.complaints("made_up.py", f"first line\n{text}\n") == [f"made_up.py:2: {what}"]


def test_the_page_of_the_rules_may_speak_of_its_sections(checkout: Checkout) -> None:
    """Its reader has them in sight."""
    assert checkout.complaints("docs/semantics.md", "sections A and B") == []


def test_a_link_is_seen_from_its_page(checkout: Checkout) -> None:
    """A page of the site links to its neighbours; `docs/` stands in no such link."""
    good = "[a](../page.md#A.7) [b](0007-made-up.md) [c](#made-up) [d](https://example.com/x.md#y) [e](../reference/settings.md#ms)"
    bad = "[a](page.md)\n[b](../page.md#A.8)\n[c](../../../away.md)\n[d](#none)"

    assert checkout.complaints("docs/adr/0007-made-up.md", good.replace("#made-up", "#0007-made-up")) == []
    assert checkout.complaints("docs/adr/0007-made-up.md", bad) == [
        "docs/adr/0007-made-up.md:1: there is no docs/adr/page.md",
        "docs/adr/0007-made-up.md:2: docs/page.md has no anchor #A.8",
        "docs/adr/0007-made-up.md:3: ../../../away.md leads out of the checkout",
        "docs/adr/0007-made-up.md:4: docs/adr/0007-made-up.md has no anchor #none",
    ]


@pytest.mark.parametrize(
    "title", ["On storage", "I wrote a new value; when does the old one go?", "`max.lag` – a *setting*", "[Link](x.md) at 10 %", "Größe"]
)
def test_a_heading_has_the_anchor_that_markdown_gives_it(title: str) -> None:
    """The site is built by Markdown, so its anchors are the true ones."""
    page = import_module("markdown").markdown(f"## {title}\n\n## {title}\n", extensions=["toc"])

    first = slug(title)
    assert re.findall(r'id="([^"]+)"', page) == [first, slug(title, {first})]
