"""`python -m latchwork`: the command."""

from .cli import main

main()
