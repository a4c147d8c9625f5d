"""How many examples a random test draws: all in `make test`, a fifth in `make quick`, which loads the profile `quick` of hypothesis."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

_MOST: Final = 100


def register_profiles() -> None:
    """Name the profiles; `--hypothesis-profile` chooses one before a test module is imported."""
    settings.register_profile("whole", deadline=None)  # a busy machine is no failure; speed is measured in benchmarks/
    settings.register_profile("quick", max_examples=_MOST // 5, deadline=None)
    settings.load_profile("whole")


def examples(count: int) -> int:
    """Return how many examples a test draws that has `count` of them in `make test`."""
    return max(1, count * min(settings().max_examples, _MOST) // _MOST)
