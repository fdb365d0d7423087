"""An older version of the package: the newest tag before this commit; before there is one, an earlier commit."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO

import pytest

from tests.support.project import ROOT

BEFORE_THERE_WERE_TAGS = "7e3b2c2dee021275ae48ac73b3800a28aff78079"


def _git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


def extracted(folder):
    """The folder from which the older `latchwork` can be imported; the test is skipped where there is no history."""
    commit = _git("describe", "--tags", "--abbrev=0", "HEAD^").decode().strip() or BEFORE_THERE_WERE_TAGS
    archive = _git("archive", commit, "src")
    if not archive:
        pytest.skip(f"no older version to run: this clone has no commit {commit[:12]} (git fetch --unshallow)")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    (folder / "latchwork").symlink_to("src")
    return folder
