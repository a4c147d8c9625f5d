"""What stands for a column that PostgreSQL left out of an event, in each encoding that Debezium has for it.

```
 text, json     "__debezium_unavailable_value"                  text[]      ["__debezium_unavailable_value"]
 bytea          base64 or hexadecimal digits of it              bytea[]     […]
 int[], float[] its bytes as numbers: [95,95,…], [95.0,95.0,…]  numeric[]   its bytes as decimals: ["Xw==","Xw==",…]
 hstore         {"__debezium_…":"__debezium_…"}                 uuid[]      ["<the UUID of its MD5>"]
```
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest

from lastword.change_data.events.debezium import read_events
from lastword.change_data.events.envelopes import PLACEHOLDER, Envelope
from lastword.compaction.errors import InvalidConfiguration


def _left_out(column: Any, envelope: Envelope, *, is_ascii: bool = True) -> bool:
    """Tell whether the value of a column is taken as left out, while a column beside it that contains the placeholder is not."""
    row = {"id": 1, "body": column, "note": f"about {envelope.placeholder}", "n": 2}
    event = {"op": "u", "after": row, "source": {"connector": "postgresql", "lsn": 1}}
    (unresolved,) = read_events([b'{"id":1}'], [json.dumps(event, ensure_ascii=is_ascii).encode()], envelope).unresolved
    assert unresolved in {(), ("body",)}
    return bool(unresolved)


@pytest.mark.parametrize(
    "column",
    [
        pytest.param([str(uuid.UUID("c6b3c4c0-84a9-3d5f-9f6f-4d2f1d0b8f11"))], id="an array of another UUID"),
        pytest.param([95.0] * 28, id="an array of as many numbers"),
        pytest.param(["Xw=="], id="an array of one decimal"),
        pytest.param([PLACEHOLDER, PLACEHOLDER], id="an array of it twice"),
        pytest.param({PLACEHOLDER: "x"}, id="a map with it as a key alone"),
        pytest.param({"x": PLACEHOLDER}, id="a map with it as a value alone"),
        pytest.param(PLACEHOLDER.upper(), id="in capitals"),
        pytest.param(f" {PLACEHOLDER}", id="with a space"),
        pytest.param([[PLACEHOLDER]], id="an array of an array of it"),
    ],
)
def test_what_only_looks_like_it_is_a_value(column: Any) -> None:
    """And stays as it is."""
    assert not _left_out(column, Envelope())


@pytest.mark.parametrize(
    "column",
    [
        pytest.param([float(octet) for octet in PLACEHOLDER.encode()], id="an array of floating-point numbers"),
        pytest.param([base64.b64encode(bytes([octet])).decode() for octet in PLACEHOLDER.encode()], id="an array of decimals"),
        pytest.param([PLACEHOLDER.encode().hex()], id="an array of bytes as hexadecimal digits"),
        pytest.param(["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], id="an array of a UUID"),
    ],
)
def test_arrays_have_it_in_the_type_of_their_elements(column: Any) -> None:
    """One element where that can be a text or bytes, else one for each of its bytes; of UUIDs the one of its MD5."""
    assert _left_out(column, Envelope())


@pytest.mark.parametrize(
    ("placeholder", "column"),
    [
        pytest.param("~~?>x", base64.urlsafe_b64encode(b"~~?>x").decode(), id="bytes as base64 for URLs"),
        pytest.param("hex:7e3f3e", "~?>", id="a placeholder that is given by its bytes"),
        pytest.param("hex:7e3f3e", "fj8+", id="a placeholder that is given by its bytes, as base64"),
        pytest.param('say "no"', 'say "no"', id="quotes"),
        pytest.param("a\\b", "a\\b", id="a backslash"),
        pytest.param("[]", "[]", id="brackets"),
    ],
)
def test_a_placeholder_of_ones_own(placeholder: str, column: str) -> None:
    """As the connector's setting has it."""
    assert _left_out(column, Envelope(placeholder=placeholder))


@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_placeholder_with_letters_beyond_ascii(*, is_ascii: bool) -> None:
    """As UTF-8, or escaped."""
    assert _left_out("– fehlt –", Envelope(placeholder="– fehlt –"), is_ascii=is_ascii)


def test_a_placeholder_that_is_no_hexadecimal_text_is_refused() -> None:
    """Before anything is read."""
    with pytest.raises(InvalidConfiguration, match="placeholder = hex:7: text, or hex: and hexadecimal digits"):
        Envelope(placeholder="hex:7")
