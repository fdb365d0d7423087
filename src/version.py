"""The version of the package: pyproject.toml, `latchwork --version` and users read it here."""

__version__ = "0.1.0"
