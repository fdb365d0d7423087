"""Every backend; and failed checks of the public contract show their values, as those of the tests do."""

import pytest

from tests.support.backends import store  # noqa: F401 - a fixture

pytest.register_assert_rewrite(
    *(f"latchwork.store.contract_{part}" for part in ("records", "forms", "ttl", "many", "once", "text")),
)
