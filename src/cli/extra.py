"""The message if packages are missing that the command needs in addition to the library."""

from __future__ import annotations

import sys
from typing import NoReturn


def without_extra(failure: ImportError) -> NoReturn:
    """Exit because a module that the command needs cannot be loaded; the text names it, and the remedy."""
    state = "is not installed" if isinstance(failure, ModuleNotFoundError) else "is of another version than needed"
    sys.exit(f"latchwork: {failure.name} {state}; install the extra: pip install 'latchwork[cli]'")
