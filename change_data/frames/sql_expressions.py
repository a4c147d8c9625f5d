"""SQL expressions over the columns of rows: those that mean the same here and in Spark. All others are refused, by name.

```
 columns      op   `of any name`                        literals   'd'  7  1.5  TRUE  DATE '2026-03-01'  TIMESTAMP '2026-03-01T06:30:00Z'
 conditions   =  ==  <>  !=  <  <=  >  >=  BETWEEN  IN (…)  IS NULL  IS NOT NULL  AND  OR  NOT  a boolean column
 casts        CAST(at AS TIMESTAMP), of a text to a type, and of a whole number to a wider one
```

Both sides of a comparison are of one kind: texts, numbers, booleans, dates or times. Spark would cast one of them, and where that fails or
rounds, its session decides; so it is refused here, with what to write instead. Functions, arithmetic and LIKE are Spark's alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.row_decoder import RowDecoder
from lastword.change_data.frames.json_columns import WrongColumn, plain_type, type_name
from lastword.change_data.frames.text_casts import can_cast_text, cast_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    #: Computes an expression for the rows of a batch; rows for which that fails are noted in the second argument.
    Compute = Callable[[Mapping[str, pa.Array], "Failures"], pa.Array]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.|'')*')|`(?P<quoted>(?:[^`]|``)+)`|(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=>|==|<>|!=|<=|>=|[=<>(),+*/%|.\-"\[\]]))"""
)
_COMPARISONS: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEYWORDS: Final = frozenset(
    ["AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "CAST", "TRY_CAST", "CASE", "INTERVAL", "EXISTS"]
)
_ALLOWED: Final = "columns, literals, comparisons, BETWEEN, IN, IS NULL, AND, OR, NOT and CAST"
#: Whole numbers up to here are the same as floating-point numbers of 32 bits; and the last ones of 64 bits.
_MAX_EXACT_FLOAT, _MAX_BIGINT = 2**24, 2**63 - 1
_MAX_PRECISION: Final = 38
#: Brackets and casts in one another.
_MAX_DEPTH: Final = 40
#: Functions of Spark that are called without brackets, where no column has their name.
_BARE_FUNCTIONS: Final = frozenset({"CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "LOCALTIMESTAMP"})
_BIGINT_DIGITS: Final = 20
_FLOATS: Final = frozenset({"float", "double"})
_NUMBERS: Final = frozenset({"whole", "decimal", *_FLOATS})
_ORDERED: Final = frozenset({"text", "boolean", "date", "timestamp", "timestamp_ntz"})


class WrongExpression(ValueError):
    """An expression that cannot be read, or might mean something else in Spark; the text says what is allowed."""


@dataclass(slots=True)
class Failures:
    """The rows of a batch for which an expression cannot be computed."""

    rows: NDArray[np.bool_]

    def add(self, column: pa.Array) -> None:
        """Note the rows for which a column of booleans is true."""
        self.rows |= pc.fill_null(column, fill_value=False).to_numpy(zero_copy_only=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression over columns of known types: its own type, and how it is computed; of a literal its value."""

    data_type: pa.DataType
    compute: Compute = field(repr=False)
    literal: Any = None
    is_literal: bool = False

    @property
    def kind(self) -> str:
        """What it is compared as."""
        return _kind(self.data_type)


def _kind(data_type: pa.DataType) -> str:
    kinds = {pa.string(): "text", pa.bool_(): "boolean", pa.date32(): "date", pa.float32(): "float", pa.float64(): "double"}
    if pt.is_integer(data_type):
        return "whole"
    if pt.is_decimal(data_type):
        return "decimal"
    if pt.is_timestamp(data_type):
        return "timestamp_ntz" if data_type.tz is None else "timestamp"
    return kinds.get(data_type, "other")


def bind_expression(text: str, types: Mapping[str, pa.DataType] | None) -> Expression:
    """Return an expression over columns of plain types; with None each name is a column of texts.

    Raises:
        WrongExpression: It cannot be read, or might mean something else in Spark.
        WrongColumn: It names a column that is not there.
    """
    return _SqlParser(text, types).parse()


def bind_condition(text: str, types: Mapping[str, pa.DataType] | None) -> Expression:
    """Return a condition, as `bind_expression`; of texts a lone column is a boolean. Raises `WrongExpression` for what is none."""
    bound = bind_expression(text, types)
    if types is None and (name := lone_column(text)):
        return Expression(data_type=pa.bool_(), compute=_cast_compute(_column_compute(name), pa.bool_()))
    if not pt.is_boolean(bound.data_type):
        message = f"{text} is not a SQL condition: it is {type_name(bound.data_type)}, and allowed is boolean"
        raise WrongExpression(message)
    return bound


def lone_column(text: str) -> str:
    """Return the column that an expression is, by itself; the empty text if it is more than that."""
    stripped = text.strip(" \t\r\n()")
    match = _TOKEN.fullmatch(stripped)
    if match is None or (match["word"] or "").upper() in {*_KEYWORDS, "TRUE", "FALSE"}:
        return ""
    return (match["quoted"] or "").replace("``", "`") or match["word"] or ""


def columns_in(text: str) -> list[str]:
    """Return the columns that an expression names, in their order. Raises `WrongExpression`."""
    parser = _SqlParser(text, None, checks_types=False)
    parser.parse()
    return list(parser.names)


class _SqlParser:
    """Parses a SQL expression by recursive descent: a method for each rule of the grammar."""

    def __init__(self, text: str, types: Mapping[str, pa.DataType] | None, *, checks_types: bool = True) -> None:
        self.text, self.types, self.place = text, types, 0
        self.checks_types = checks_types
        self.names: dict[str, None] = {}
        self.depth = 0

    def parse(self) -> Expression:
        made = self.parse_or()
        if self.text[self.place :].strip():
            self.fail_here()
        return made

    def parse_or(self) -> Expression:
        sides = [self.parse_and()]
        while self.skip("OR"):
            sides.append(self.parse_and())
        return self.logical(pc.or_kleene, sides, "OR")

    def parse_and(self) -> Expression:
        sides = [self.parse_not()]
        while self.skip("AND"):
            sides.append(self.parse_not())
        return self.logical(pc.and_kleene, sides, "AND")

    def parse_not(self) -> Expression:
        count = 0
        while self.skip("NOT"):
            count += 1
        made = self.parse_predicate()
        if count:
            self.check_boolean(made, "NOT")
        return _inverse(made) if count % 2 else made

    def parse_predicate(self) -> Expression:
        left = self.parse_operand()
        sign = self.peek("sign")
        if sign in _COMPARISONS:
            self.take()
            return self.compare(_COMPARISONS[sign], left, self.parse_operand())
        if self.skip("IS"):
            is_not = self.skip("NOT")
            if not self.skip("NULL"):
                self.fail("IS NULL and IS NOT NULL are allowed after IS")
            return _boolean(lambda columns, failures: (pc.is_valid if is_not else pc.is_null)(left.compute(columns, failures)))
        is_not = self.skip("NOT")
        if self.skip("BETWEEN"):
            low = self.parse_operand()
            self.expect("AND")
            made = self.logical(pc.and_kleene, [self.compare(">=", left, low), self.compare("<=", left, self.parse_operand())], "AND")
        elif self.skip("IN"):
            self.expect("(")
            sides = [self.compare("=", left, self.parse_operand())]
            while self.skip(","):
                sides.append(self.compare("=", left, self.parse_operand()))
            made = self.logical(pc.or_kleene, sides, "OR")
            self.expect(")")
        elif is_not:
            self.fail("BETWEEN and IN are allowed after NOT")
        else:
            return left
        return _inverse(made) if is_not else made

    def parse_operand(self) -> Expression:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"more than {_MAX_DEPTH} brackets and casts in one another")
        made = self.parse_inner()
        self.depth -= 1
        return made

    def parse_inner(self) -> Expression:
        if self.skip("("):
            made = self.parse_or()
            self.expect(")")
            return made
        token = _TOKEN.match(self.text, self.place)
        if token is None:
            self.fail_here()
        if token["text"] is not None:
            return self.parse_text()
        if token["number"] is not None or token["sign"] == "-":
            return self.parse_number()
        return self.parse_column() if token["quoted"] is not None else self.parse_word(token)

    def parse_word(self, token: re.Match[str]) -> Expression:
        word = (token["word"] or "").upper()
        if word == "CAST":
            return self.parse_cast()
        if word in {"TRUE", "FALSE"}:
            self.take()
            return _literal(word == "TRUE", pa.bool_())
        if word in {"DATE", "TIMESTAMP"} and self.text[token.end() :].lstrip().startswith("'"):
            self.take()
            return self.parse_time(word)
        if word == "NULL":
            self.fail("NULL is a value of no kind; write IS NULL")
        if not word or word in _KEYWORDS:
            self.fail_here()
        return self.parse_column()

    def parse_column(self) -> Expression:
        token = self.take()
        name = str(token["quoted"].replace("``", "`") if token["quoted"] is not None else token["word"])
        if self.peek("sign") in {"(", "."} and token["quoted"] is None:
            what = f"the function {name}" if self.peek("sign") == "(" else f"a field of {name}"
            self.fail(f"{what} is for Spark alone")
        if self.peek("sign") in set("+-*/%|["):
            self.fail("arithmetic is for Spark alone")
        if self.checks_types and token["quoted"] is None and name.upper() in _BARE_FUNCTIONS and name not in (self.types or {}):
            self.fail(f"the function {name} is for Spark alone")
        self.names[name] = None
        if self.types is None:
            return Expression(data_type=pa.string(), compute=_column_compute(name))
        if name not in self.types:
            alike = [other for other in self.types if other.casefold() == name.casefold()]
            hint = ": upper and lower case differ" if alike else ""
            message = f"{self.text}: no column {name}; there are {', '.join(self.types)}{hint}"
            raise WrongColumn(message)
        return Expression(data_type=self.types[name], compute=_column_compute(name))

    def parse_text(self) -> Expression:
        text = self.take()["text"][1:-1]
        if "\\" in text or "'" in text:
            self.fail(f"the text '{text}' has a quote or a backslash, which Spark reads by its settings")
        return _literal(text, pa.string())

    def parse_number(self) -> Expression:
        is_negative = self.skip("-")
        token = self.take()
        if token["number"] is None:
            self.fail_here()
        text = ("-" if is_negative else "") + token["number"]
        if self.peek("sign") in set("+-*/%|") or re.match(r"[A-Za-z_]", self.text[self.place :]):
            self.fail("arithmetic, and letters behind a number, are for Spark alone")
        if "e" in text.lower():
            if math.isinf(float(text)):
                self.fail(f"the number {text} has more than 64 bits")
            return _literal(float(text), pa.float64())
        if "." in text:
            number = Decimal(text)
            scale = max(0, -int(number.as_tuple().exponent))
            if max(len(number.as_tuple().digits), scale) > _MAX_PRECISION:
                self.fail(f"the number {text} has more than 38 digits")
            return _literal(number, pa.decimal128(max(len(number.as_tuple().digits), scale, 1), scale))
        if len(text.lstrip("-0")) > _BIGINT_DIGITS or abs(int(text)) > _MAX_BIGINT:
            self.fail(f"the number {text} has more than 64 bits")
        return _literal(int(text), pa.int64())

    def parse_time(self, word: str) -> Expression:
        text = self.parse_text().literal
        if word == "TIMESTAMP" and not re.search(r"(?:Z|[+-]\d\d:\d\d)$", text):
            self.fail(f"TIMESTAMP '{text}' has no time zone; write it with Z or an offset")
        data_type = pa.date32() if word == "DATE" else pa.timestamp("us", "UTC")
        value = cast_texts(pa.array([text]), data_type)[0].as_py()
        if value is None:
            self.fail(f"'{text}' is no {word}")
        return _literal(value, data_type)

    def parse_cast(self) -> Expression:
        self.take()
        self.expect("(")
        inner = self.parse_operand()
        self.expect("AS")
        rest = self.text[self.place :]
        match = re.match(r"\s*([A-Za-z_]+\s*(?:\(\s*[0-9]+\s*(?:,\s*[0-9]+\s*)?\))?)\s*\)", rest)
        if match is None:
            self.fail("a type expected after AS, e.g. CAST(n AS BIGINT)")
        self.place += match.end()
        data_type = sql_type(match[1])
        if data_type is None:
            self.fail(f"CAST to {match[1].strip()}: allowed are the types of Spark without parts")
        if inner.data_type == data_type or not self.checks_types:
            return inner
        is_wider = inner.kind == "whole" and pt.is_integer(data_type) and data_type.bit_width >= inner.data_type.bit_width
        if is_wider:
            return Expression(data_type=data_type, compute=lambda columns, failures: inner.compute(columns, failures).cast(data_type))
        if inner.kind != "text" or not can_cast_text(data_type):
            self.fail(f"CAST of {type_name(inner.data_type)} to {type_name(data_type)} is for Spark alone")
        return Expression(data_type=data_type, compute=_cast_compute(inner.compute, data_type))

    def compare(self, sign: str, left: Expression, right: Expression) -> Expression:
        if not self.checks_types:
            return _boolean(left.compute)
        left, right = self.as_time(left, right), self.as_time(right, left)
        data_type = self.common_type(left, right)
        if data_type is None:
            self.fail(
                f"{type_name(left.data_type)} {sign} {type_name(right.data_type)} compares two kinds; cast one, e.g. CAST(n AS BIGINT), or "
                "write the literal as the column's kind"
            )

        if pt.is_floating(data_type):
            left, right = (_literal(float(side.literal), data_type) if side.is_literal else side for side in (left, right))
        sides = left, right

        def compute(columns: Mapping[str, pa.Array], failures: Failures) -> pa.Array:
            return _compare(sign, *(side.compute(columns, failures).cast(data_type) for side in sides))

        return _boolean(compute)

    def as_time(self, side: Expression, other: Expression) -> Expression:
        """Return a literal text as a date or a time if it is compared with one; other expressions as they are."""
        if not side.is_literal or side.kind != "text" or other.kind not in {"date", "timestamp", "timestamp_ntz"}:
            return side
        is_zoned = re.search(r"(?:Z|[+-]\d\d:\d\d)$", side.literal) is not None
        value = cast_texts(pa.array([side.literal]), other.data_type)[0].as_py()
        if value is None or (other.kind == "timestamp" and not is_zoned):
            example = {"date": "2026-03-01", "timestamp": "2026-03-01T06:30:00Z", "timestamp_ntz": "2026-03-01T06:30:00"}[other.kind]
            self.fail(f"'{side.literal}' is compared with a {type_name(other.data_type)}: write it as '{example}'")
        return _literal(value, other.data_type)

    def common_type(self, left: Expression, right: Expression) -> pa.DataType | None:
        """Return the type as which two sides are compared; None where Spark would cast one of them with a loss, or by its settings."""
        kinds = {left.kind, right.kind}
        if len(kinds) == 1 and kinds <= _ORDERED:
            return left.data_type
        if not kinds <= _NUMBERS:
            return None
        if not kinds & _FLOATS:
            if kinds == {"whole"}:
                return pa.int64()
            sizes = [
                (_BIGINT_DIGITS, 0) if side.kind == "whole" else (side.data_type.precision, side.data_type.scale) for side in (left, right)
            ]
            scale = max(scale for _, scale in sizes)
            precision = max(precision - own for precision, own in sizes) + scale
            return pa.decimal128(precision, scale) if precision <= _MAX_PRECISION else None
        others = [side for side in (left, right) if side.kind not in _FLOATS]
        exact = all(side.is_literal and abs(side.literal) <= _MAX_EXACT_FLOAT for side in others)
        return pa.float64() if exact else None

    def logical(self, function: Callable[[pa.Array, pa.Array], pa.Array], sides: list[Expression], word: str) -> Expression:
        if len(sides) == 1:
            return sides[0]
        for side in sides:
            self.check_boolean(side, word)
        return _boolean(lambda columns, failures: reduce(function, (side.compute(columns, failures) for side in sides)))

    def check_boolean(self, side: Expression, word: str) -> None:
        if self.checks_types and not pt.is_boolean(side.data_type):
            self.fail(f"{word} of a {type_name(side.data_type)}: allowed is a condition")

    def peek(self, group: str) -> str:
        token = _TOKEN.match(self.text, self.place)
        return "" if token is None else token[group] or ""

    def take(self) -> re.Match[str]:
        token = _TOKEN.match(self.text, self.place)
        if token is None:
            self.fail_here()
        self.place = token.end()
        return token

    def skip(self, token: str) -> bool:
        if (self.peek("word").upper() or self.peek("sign")) != token:
            return False
        self.take()
        return True

    def expect(self, token: str) -> None:
        if not self.skip(token):
            self.fail(f"{token} expected at {self.text[self.place :].strip()[:40] or 'the end'}")

    def fail_here(self) -> NoReturn:
        rest = self.text[self.place :].strip()
        if rest.startswith('"'):
            self.fail("double quotes mean a text or a column by the settings of Spark; write 'text' or `column`")
        self.fail(f"{rest[:40] or 'the end'} cannot be read here")

    def fail(self, why: str) -> NoReturn:
        message = f"{self.text}: {why}. Without Spark allowed are {_ALLOWED}"
        raise WrongExpression(message)


def sql_type(name: str) -> pa.DataType | None:
    """Return the plain type that a name of SQL stands for; None for another name, and for what would be a text here (JSON, VARCHAR)."""
    try:
        data_type = plain_type(RowDecoder(columns_of_ddl(f"x {name}")).schema.field("x").type)
    except ValueError:
        return None
    is_other = data_type is not None and pt.is_string(data_type) and name.strip().upper() != "STRING"
    return None if is_other else data_type


def _inverse(inner: Expression) -> Expression:
    return _boolean(lambda columns, failures: pc.invert(inner.compute(columns, failures)))


def _boolean(compute: Compute) -> Expression:
    return Expression(data_type=pa.bool_(), compute=compute)


def _literal(value: Any, data_type: pa.DataType) -> Expression:
    def compute(columns: Mapping[str, pa.Array], failures: Failures) -> pa.Array:
        del columns
        return pa.repeat(pa.scalar(value, data_type), len(failures.rows))

    return Expression(data_type=data_type, compute=compute, literal=value, is_literal=True)


def _column_compute(name: str) -> Compute:
    return lambda columns, failures: columns[name] if name in columns else pa.nulls(len(failures.rows), pa.string())


def _cast_compute(inner: Compute, data_type: pa.DataType) -> Compute:
    def compute(columns: Mapping[str, pa.Array], failures: Failures) -> pa.Array:
        texts = inner(columns, failures)
        values = cast_texts(texts, data_type)
        failures.add(pc.and_(texts.is_valid(), values.is_null()))
        return values

    return compute


def _compare(sign: str, left: pa.Array, right: pa.Array) -> pa.Array:
    """Compare two columns of one type, as Spark does: NaN equals itself, and is above all numbers."""
    functions: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {"=": pc.equal, "<": pc.less, ">": pc.greater}
    if sign == "<>":
        return pc.invert(_compare("=", left, right))
    if sign in {"<=", ">="}:
        return pc.or_(_compare(sign[0], left, right), _compare("=", left, right))
    made = functions[sign](left, right)
    if not pt.is_floating(left.type):
        return made
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if sign == "=":
        return pc.or_(made, pc.and_(left_nan, right_nan))
    above, below = (right_nan, left_nan) if sign == "<" else (left_nan, right_nan)
    return pc.or_(made, pc.and_(above, pc.invert(below)))
