"""`python -m latchwork.cli`."""

from . import main

main()
