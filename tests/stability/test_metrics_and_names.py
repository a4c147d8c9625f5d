"""Names that others write down: Prometheus metrics in alerts and dashboards, the Python API in programs."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from typing import TYPE_CHECKING, Any, Final

import lastword
from lastword.status.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.golden import Golden

#: Attributes of topics and log.dirs that are for tools and tests, and may change (tests/lastword/test_public_names.py).
_INTERNAL: Final = {"log", "cleaner", "idle_cleaner"}


def test_the_metrics(golden: Golden) -> None:
    """Name, type and labels of each; what it means is in the reference."""
    lines = [f"{metric.name} {metric.kind} {{{','.join(metric.labels)}}}" for metric in sorted(METRICS, key=lambda metric: metric.name)]
    golden.check("metrics.txt", "\n".join(lines))


def test_the_python_api(golden: Golden) -> None:
    """All that `from lastword import …` reaches: classes with their bases, methods, properties and fields, functions with signatures."""
    golden.check("api.txt", "\n\n".join("\n".join(_described(name, getattr(lastword, name))) for name in sorted(lastword.__all__)))


def _described(name: str, thing: Any) -> Iterator[str]:
    """Yield the lines that say what a public name is."""
    if not inspect.isclass(thing):
        yield f"{name}{_signature(thing)}" if callable(thing) else f"{name}: {type(thing).__name__}"
        return
    yield f"class {name}({', '.join(base.__name__ for base in thing.__bases__ if base not in {object, typing.Generic})})".replace("()", "")
    if "__init__" in vars(thing):
        yield from (f"    __init__{text}" for text in _overloads(thing) or [_signature(thing.__init__)])
    yield from (f"    {field}: {_text(thing.__annotations__[field])}" for field in getattr(thing, "_fields", ()))
    for member, value in inspect.getmembers(thing, lambda value: inspect.isroutine(value) or isinstance(value, property)):
        if member.startswith("_") or member in _INTERNAL or not _is_shown(thing, member):
            continue
        if isinstance(value, property):
            yield f"    {member} -> {value.fget.__annotations__.get('return', 'Any')}"
        else:
            yield f"    {member}{_signature(value)}"


def _is_shown(thing: type, member: str) -> bool:
    """Tell whether a member is of the class: not of Python, nor of a base that is public and shown itself."""
    home = next(base for base in thing.__mro__ if member in vars(base))
    bases = [base for base in thing.__mro__[1:] if base.__name__ in lastword.__all__]
    return home is thing or (home.__module__.partition(".")[0] == "lastword" and not any(hasattr(base, member) for base in bases))


def _overloads(thing: type) -> list[str]:
    """Return the signatures of `__init__` that type checkers see, where there are several."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return [f"({ast.unparse(node.args)})" for node in methods if any(ast.unparse(one) == "overload" for one in node.decorator_list)]


def _signature(function: Any) -> str:
    """Return a signature with annotations as they are written; a default that is a function has its name."""
    signature = inspect.signature(function)
    shown = [one.replace(annotation=_shown(one.annotation), default=_default(one.default)) for one in signature.parameters.values()]
    return str(signature.replace(parameters=shown, return_annotation=_shown(signature.return_annotation)))


def _text(annotation: Any) -> str:
    """Return an annotation as it is written."""
    return str(getattr(annotation, "__forward_arg__", annotation))


def _default(value: Any) -> Any:
    is_named = inspect.isfunction(value) or (inspect.isclass(value) and value is not inspect.Parameter.empty)
    return _Shown(value.__name__) if is_named else value


def _shown(annotation: Any) -> Any:
    return _Shown(annotation) if isinstance(annotation, str) else annotation


class _Shown:
    """Shows a text without quotes."""

    def __init__(self, text: str) -> None:
        """Take the text."""
        self._text = text

    def __repr__(self) -> str:
        """Return the text."""
        return self._text
