"""Spark needs Java 17 or newer: say so before anything else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

NEEDED = 17


def require_java() -> None:
    """End the program with one clear line where Java is missing or too old."""
    found = java_version()
    if found is None or found < NEEDED:
        has = "none was found" if found is None else f"this is {found}"
        print(
            f"Java {NEEDED} or newer is needed for Spark, and {has}: install a JDK, "
            "for example apt-get install openjdk-17-jre-headless (Debian) or brew install openjdk@17 (macOS)",
            file=sys.stderr,
        )
        sys.exit(1)


def java_version() -> int | None:
    """The main version of the Java that Spark will use ($JAVA_HOME, else the one on the PATH); None without one."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else "java"
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(version.group(1)) if version else None
