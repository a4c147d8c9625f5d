"""Secrets in texts: what a message, a log line or a page must not show, recognised by its name or its place.

| text | shown |
|---|---|
| `sasl.jaas.config = "… password='hunter2';"` | `sasl.jaas.config = ***` |
| `required username="a" password="hunter2";` | `required username="a" password=***;` |
| `https://ann:hunter2@registry:8081` | `https://***@registry:8081` |
| `AWS_SECRET_ACCESS_KEY=hunter2` | `AWS_SECRET_ACCESS_KEY=***` |
| `Authorization: Basic YW5u` | `Authorization: ***` |
| `-----BEGIN PRIVATE KEY-----…` | `***` |

A setting whose key is not known is shown without its value (`lastword.service.settings`): it may be a secret under another name.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
_NAME: Final = (
    r"(?:password|passwd|passphrase|(?<![a-z])pwd|secret|(?<![a-z])token|jaas|credential|(?:access|account|api|private|shared)[._-]?key"
    r"|user[._-]info|connection[._-]?string|(?<![a-z])sas(?![a-z])|(?<![a-z])sig(?:nature)?(?![a-z]))"
)
_SECRET_KEY: Final = re.compile(_NAME, re.IGNORECASE)
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_AUTHORIZATION: Final = re.compile(r"(authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:basic|bearer|digest)\s+)?[^\s\"',;]+", re.IGNORECASE)
_LOGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@\"']+@", re.IGNORECASE)
#: A name before a colon may also be the end of a path: then what follows is no value of it.
_NAMED: Final = rf"(?:[\w.\-]*{_NAME}[\w.\-]*[\"']?\s*=|(?<![/\w.\-])[\w.\-]*{_NAME}[\w.\-]*[\"']?\s*:(?!//))"
_ASSIGNED: Final = re.compile(rf"({_NAMED}\s*)(?!\*\*\*)(\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[^\s,;&)\]}}]+)", re.IGNORECASE)


def is_secret(key: str) -> bool:
    """Tell whether a setting of this name is a secret."""
    return bool(_SECRET_KEY.search(key))


def without_secrets(text: str) -> str:
    """Return a text without the secrets in it."""
    if ":" not in text and "=" not in text:
        return text
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _AUTHORIZATION.sub(rf"\1{HIDDEN}", text)
    text = _LOGIN.sub(rf"\1{HIDDEN}@", text)
    return _ASSIGNED.sub(rf"\1{HIDDEN}", text)
