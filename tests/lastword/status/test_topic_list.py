"""Topics that are found and sorted on the overview."""

from __future__ import annotations

import pytest

from lastword.status.records import InvalidRequest
from lastword.status.standing import AppendCounts
from lastword.status.topic_list import SORTS, choose_topics
from tests.lastword.status.standings import partition, standing, topic
from tests.lastword.status.test_pages import client

_TOPICS = (
    topic("shop.orders", logs=[partition()], appends=AppendCounts(late=1)),
    topic("shop.lines", logs=[partition(), partition()], appends=AppendCounts(late=7)),
    topic("Prices", logs=[]),
)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, ["Prices", "shop.lines", "shop.orders"]),
        ({"find": "SHOP"}, ["shop.lines", "shop.orders"]),
        ({"find": " price "}, ["Prices"]),
        ({"find": "nothing"}, []),
        ({"sort": "late"}, ["shop.lines", "shop.orders", "Prices"]),
        ({"sort": "late", "find": "orders"}, ["shop.orders"]),
    ],
)
def test_topics_are_found_by_a_part_of_their_name_and_sorted(asked: dict[str, str], names: list[str]) -> None:
    """In whatever case; by name, or the highest value first."""
    assert [one.name for one in choose_topics(_TOPICS, asked).topics] == names


@pytest.mark.parametrize("sort", SORTS)
def test_each_column_sorts(sort: str) -> None:
    """Also where a topic has no partition and no value; the page links to each."""
    assert len(choose_topics(_TOPICS, {"sort": sort}).topics) == len(_TOPICS)
    page = client(standing(*_TOPICS)).get("/", params={"sort": sort}).text
    assert f"sort={sort}" in page
    assert page.count("aria-sort=") == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sort": "name"}, f"sort = 'name': allowed is one of {', '.join(SORTS)}"),
        ({"page": "2"}, "page = '2': allowed are the parameters find and sort"),
    ],
)
def test_a_mistake_is_one_line_with_what_is_allowed(asked: dict[str, str], message: str) -> None:
    """Status 400."""
    with pytest.raises(InvalidRequest, match="allowed"):
        choose_topics(_TOPICS, asked)
    answer = client(standing(*_TOPICS)).get("/", params=asked)
    assert (answer.status_code, answer.text) == (400, f"{message}\n")


def test_the_page_has_a_search_that_escapes_what_is_typed_and_keeps_the_order() -> None:
    """A name that no topic has is said; what was typed stays in the field."""
    typed = '"><script>'
    page = client(standing(*_TOPICS)).get("/", params={"find": typed, "sort": "size"})
    assert (page.status_code, typed in page.text) == (200, False)
    assert "No topic has" in page.text
    assert "form-action 'self'" in page.headers["content-security-policy"]
    assert '<input type="hidden" name="sort" value="size">' in page.text
    found = client(standing(*_TOPICS)).get("/", params={"find": "lines"}).text
    assert "/topics/shop.lines" in found
    assert '<th scope="row"><a href="/topics/shop.orders">' not in found
