"""`store` is one of each backend; `name` a queue name that no other test has."""

from __future__ import annotations

from itertools import count

import pytest

from tests.support.backends import store  # noqa: F401 - a fixture

_NUMBERS = count()


@pytest.fixture
def name():
    return f"queue-{next(_NUMBERS)}"
