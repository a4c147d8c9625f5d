"""Rows of text files: keys and values as they stand there, whatever is in them."""

from __future__ import annotations

import json
import random
import string
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lastword.change_data.columns.json_rows import NoEvent
from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.events.event_rows import event_rows
from lastword.change_data.files.file_rows import (
    CorruptFile,
    FileColumns,
    csv_header,
    csv_misfit,
    csv_row,
    decode_json_document,
    decode_json_lines,
    fields_of_row,
)
from lastword.compaction.rows.input_columns import REFUSAL

_K = FileColumns(key=["k"])


def _record(row: str, columns: FileColumns = _K) -> tuple[str | None, str | None]:
    fields = fields_of_row(row.encode())
    key, value = columns.key_of(fields), columns.value_of(fields)
    return None if key is None else key.decode(), None if value is None else value.decode()


@pytest.mark.parametrize(
    ("row", "key", "value"),
    [
        ('{"k":"007","v":1.50}', "007", '{"v":1.50}'),
        ('{"k":7,"v":null}', "7", '{"v":null}'),
        ('{"k":12345678901234567890123,"v":1e2}', "12345678901234567890123", '{"v":1e2}'),
        ('{"k":1.0,"v":0.10}', "1", '{"v":0.10}'),
        ('{"k":{"c":"c","a":"a, b"}}', '{"a":"a, b","c":"c"}', "{}"),
        ('{"k":{"a":"a","c":"b, c"}}', '{"a":"a","c":"b, c"}', "{}"),
        ('{"k":[1.0, "x"]}', '[1,"x"]', "{}"),
        ('{"k":true}', "true", "{}"),
        ('{"k":"","v":1}', "", '{"v":1}'),
        ('{"k":null,"v":1}', None, '{"v":1}'),
        ('{"v":1}', None, '{"v":1}'),
        ('{"k":"a","geo":{"lat":1},"geo.lat":2,"*":3,"`":4,"_metadata":5}', "a", '{"geo":{"lat":1},"geo.lat":2,"*":3,"`":4,"_metadata":5}'),
        ('{"k":"a","K":"b"}', "a", '{"K":"b"}'),
        ('{"k":"a","at":"2026-01-01T00:00:00.123456789Z"}', "a", '{"at":"2026-01-01T00:00:00.123456789Z"}'),
        ('{"k":"\\u00e9\\n","v":"\\u00e9"}', "é\n", '{"v":"\\u00e9"}'),
    ],
)
def test_keys_and_values_stand_as_they_are_in_the_file(row: str, key: str | None, value: str) -> None:
    """No number is rounded, no leading zero lost, no column with dots taken for another; an object is canonical as a key."""
    assert _record(row) == (key, value)


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        (FileColumns(key=["k"], value="after"), '{"x":1, "y":2}'),
        (FileColumns(key=["k"], value="text"), "plain"),
        (FileColumns(key=["k"], value="none"), None),
        (FileColumns(key=["k"], value="missing"), None),
        (FileColumns(key=["k"], columns=["text", "missing"]), '{"text":"plain","missing":null}'),
        (FileColumns(key=["k"], drop=["after", "none"]), '{"text":"plain"}'),
    ],
)
def test_the_value_is_one_column_or_an_object_of_some(columns: FileColumns, value: str | None) -> None:
    """A value that is null or missing is a tombstone."""
    assert _record('{"k":1,"after":{"x":1, "y":2},"text":"plain","none":null}', columns)[1] == value


def test_a_key_of_several_columns_is_a_canonical_object() -> None:
    """In the order that the settings name them or another: the same key; all of them missing is none."""
    columns = FileColumns(key=["b", "a"])
    assert _record('{"b":1.0,"a":"x"}', columns) == ('{"a":"x","b":1}', "{}")
    assert _record('{"a":"x","b":1}', columns)[0] == '{"a":"x","b":1}'
    assert _record('{"a":"","c":1}', columns)[0] == '{"a":"","b":null}'
    assert _record('{"a":null,"c":1}', columns)[0] is None


@pytest.mark.parametrize(
    "row",
    [
        '{"a":1,"a":2}',
        '{"a":1,"b":{"a":1},"a":1}',
        '{"x":"\\"","a":1,"a":1}',
        '{"a" :1, "a"\t: 2}',
        '{"a":1,"\\u0061":2}',
        '{"t":"12:30","\\u0061" : 1,"a":2}',
    ],
)
def test_a_row_with_a_column_twice_is_refused(row: str) -> None:
    """Which of the two is meant is not guessed."""
    with pytest.raises(NoEvent, match="column a comes twice"):
        fields_of_row(row.encode())


@pytest.mark.parametrize("row", ['{"a":{"a":{"a":1}}}', '{"a":"\\"a\\"","b":"a"}', '{"a":["a","a"]}', '{"a":"\\"a\\":1","b":"x:y"}'])
def test_a_name_that_comes_again_elsewhere_is_no_column_twice(row: str) -> None:
    """Inner objects and texts have names of their own."""
    assert "a" in fields_of_row(row.encode())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"a":1', "truncated"),
        (b"[1]", "Expected `object`"),
        (b"1", "Expected `object`"),
        (b'{"a":1} x', "trailing"),
        (b'{"a":NaN}', "no JSON object"),
        (b'{"n":"M\xfcller"}', r"byte b'\xfc' at 7 is not UTF-8; the option encoding"),
        (b"\x00\x01", "no JSON object"),
        (b"[" * 5_000, "Expected `object`"),
    ],
)
def test_a_line_that_is_no_object_is_malformed_and_says_why(line: bytes, why: str) -> None:
    """The lines around it are rows."""
    [[first, bad, last]] = decode_json_lines([b'\xef\xbb\xbf{"k":1}\n', b"\n", line, b'{"k":2}\r\n'], "UTF-8")
    assert (first.text, last.text) == (b'{"k":1}', b'{"k":2}')
    assert bad.malformed is not None
    assert why in bad.detail


#: Lines that are rows, that hold more than one or a part of one, and that only look like one.
_HOSTILE: Final = (
    *(
        b'{"a":1}',
        b' {"a": [1, {"b":null}]} ',
        '{"ü":"ü"}'.encode(),
        b"{}",
        b'{"a":"x:y","b":"\\""}',
        b"",
        b" \t",
        b"null",
        b"[]",
        b"1",
        b"\xff",
    ),
    *(
        b'{"a":1},{"b":2}',
        b'{"a":1} {"b":2}',
        b'{"a":',
        b"1}",
        b'{"a":[1',
        b"2]}",
        b'"b":2}',
        b'{"a":1',
        b"]",
        b"[",
        b'{"a":1}]',
        b",",
        b'{"a":1},',
    ),
    *(b'{"a":1,"a":2}', b'{"a" :1,"a" : 2}', b'{"a":1,"\\u0061":2}', b'{"a":{"a":1}}', b'{"a":1,"b":{"a":2}}', b'{"a":01}', b"\x00"),
    *(b"[" * 3_000 + b"]" * 3_000, b'{"a":' * 3_000, b'{"a":"' + b"x" * 200 + b'"}'),
)


@pytest.mark.parametrize(("lines_at_a_time", "bytes_at_a_time"), [(1, 2**24), (2, 2**24), (5, 20), (10_000, 2**24), (10_000, 1)])
@pytest.mark.parametrize("encoding", ["UTF-8", "utf-8", "ISO-8859-1"])
def test_a_line_is_the_same_row_whatever_lines_stand_beside_it(encoding: str, lines_at_a_time: int, bytes_at_a_time: int) -> None:
    """Lines are decoded together, and each is what it is alone: no two become one, no one becomes two."""
    chance = random.Random(lines_at_a_time)
    for _ in range(400):
        lines = chance.choices(_HOSTILE, k=chance.randint(1, 8)) if chance.random() < 0.7 else [b'{"a":1}'] * chance.randint(1, 8)
        sizes = {"lines_at_a_time": lines_at_a_time, "bytes_at_a_time": bytes_at_a_time}
        blocks = list(decode_json_lines([line + b"\r\n" for line in lines], encoding, **sizes))
        assert all(0 < len(block) <= lines_at_a_time for block in blocks)
        rows = list(chain.from_iterable(blocks))
        alone = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        assert len(rows) == len(alone)
        for row, (number, line) in zip(rows, alone, strict=True):
            try:
                text = line.decode(encoding).encode()
                expected: tuple[Any, ...] = (text, fields_of_row(text), None)
            except (UnicodeDecodeError, NoEvent):
                expected = (b"", {}, line.decode(encoding, "backslashreplace"))
                assert row.detail.startswith(f"line {number}: ")
            assert (row.text, row.fields, row.malformed) == expected


@pytest.mark.parametrize(
    ("text", "encoding", "rows"),
    [
        ('[{"k":1},\n {"k":"ü"}]', "UTF-8", ['{"k":1}', '{"k":"ü"}']),
        ('{"k":\n1}', "ISO-8859-1", ['{"k":\n1}']),
        ('[{"k":"ü"}]', "UTF-16", ['{"k":"ü"}']),
        ("[]", "UTF-8", []),
    ],
)
def test_a_document_is_one_object_or_an_array_of_them(text: str, encoding: str, rows: list[str]) -> None:
    """A multi-line JSON file holds one object or an array of objects, in any supported encoding."""
    assert [row.text.decode() for row in decode_json_document(text.encode(encoding), encoding)] == rows


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "neither one JSON object"),
        (b'[{"a":1}', "neither one JSON object"),
        (b"7", "neither one JSON object"),
        (b'{"a":"\xff"}', "is not UTF-8"),
        ('{"a":1}'.encode("utf-16"), "UTF-16"),
    ],
)
def test_a_document_that_is_neither_is_a_corrupt_file(text: bytes, why: str) -> None:
    """There is no row to keep of it."""
    with pytest.raises(CorruptFile, match=why):
        list(decode_json_document(text, "UTF-8"))
    (bad,) = decode_json_document(b"[7]", "UTF-8")
    assert bad.malformed == "7"


def test_rows_of_csv_are_objects_of_texts() -> None:
    """A field that is not there is null, one of quotes alone is empty; what does not decode or fit is malformed with its text."""
    assert csv_header(["a", None], "UTF-8") == ["a", ""]
    assert csv_row(["a", "b"], ["007", None], "UTF-8").text == b'{"a":"007","b":null}'
    assert csv_row(["a"], ["M\xfcller"], "ISO-8859-1").text == '{"a":"Müller"}'.encode()
    bad = csv_row(["a", "b"], ["M\xfcller", None], "UTF-8")
    assert (bad.malformed, "not UTF-8" in bad.detail) == ("M\\xfcller,", True)
    misfit = csv_misfit("1,2,\xff", 3, ["a", "b"], "UTF-8")
    assert (misfit.malformed, misfit.detail) == ("1,2,\\xff", "the row has 3 fields, and the header names 2 columns: 1,2,\\xff")
    for header, why in ((["a", "b", "a"], "names a column twice: 'a'"), (["\xfc"], "not UTF-8")):
        with pytest.raises(CorruptFile, match=why):
            csv_header(header, "UTF-8")


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NAMES = st.sampled_from(["k", "K", "a.b", "`", "*", "_metadata", "", " ", "__malformed", "é", '"', "\\"]) | _TEXTS
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@example([b"\xef\xbb\xbf", b"\xef\xbb\xbf"], " ")
@given(st.lists(st.dictionaries(_NAMES, _VALUES, max_size=5) | st.binary(max_size=30), max_size=8), st.sampled_from(string.whitespace[:1]))
def test_each_line_is_a_row_or_malformed_and_none_is_changed(lines: list[dict[str, Any] | bytes], blank: str) -> None:
    """Random rows and random bytes: nothing is lost, and what is a row means in the log what it means in the file."""
    texts = [json.dumps(line).encode() if isinstance(line, dict) else line.replace(b"\n", b"") for line in lines]
    wide = texts and texts[0][:2] in {b"\xff\xfe", b"\xfe\xff"}
    kept = [text for number, text in enumerate(texts) if (text if number else text.removeprefix(b"\xef\xbb\xbf")).strip()]
    try:
        rows = list(chain.from_iterable(decode_json_lines([*texts, blank.encode()], "UTF-8")))
    except CorruptFile:
        assert wide
        return
    assert len(rows) == len(kept)
    good = [line for line in lines if isinstance(line, dict)]
    whole = iter(rows)
    for line in good:
        text = json.dumps(line).encode()
        assert any(row.text == text for row in whole)
        fields = fields_of_row(text)
        rest = json.loads(FileColumns(key=["k"]).value_of(fields) or b"null")
        assert rest == json.loads(json.dumps({name: value for name, value in line.items() if name != "k"}))


def test_what_a_source_says_of_an_event_stands_before_what_the_envelope_says() -> None:
    """A file that could not be read is a row of its own among the events."""
    reasons = pa.array([None, "corrupt_file: a.json"])
    batch = pa.record_batch({"key": pa.array([None, None]), "value": pa.array([b"no event", None]), REFUSAL: reasons})
    found = event_rows(batch, Envelope()).to_pylist()
    assert [row[REFUSAL] for row in found][1] == "corrupt_file: a.json"
    assert "no envelope of Debezium" in found[0][REFUSAL]


@pytest.mark.parametrize("text", ['{"id":1e99999999999999999999}', f'{{"id":[{"1" * 5000}]}}'])
def test_a_number_that_cannot_be_computed_with_is_no_key(text: str) -> None:
    """NaN and infinity are refused in a key of one column and of several."""
    fields = fields_of_row(text.encode())
    for key in (["id"], ["id", "other"]):
        with pytest.raises(NoEvent, match=r"the key's column id = .*: it cannot be a key"):
            FileColumns(key=key).key_of(fields)


def test_zero_is_one_key_with_a_sign_and_without() -> None:
    """As a number; a text is its text."""
    keys = [FileColumns(key=["id"]).key_of(fields_of_row(f'{{"id":{zero}}}'.encode())) for zero in ("0", "-0", "-0.0", "0e5", '"-0"')]
    assert keys == [b"0", b"0", b"0", b"0", b"-0"]
