"""The README's five lines of each primitive run as they stand there, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_code_runs_word_for_word(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    code = "\n".join(block for block in blocks if "pyspark" not in block)  # tests/spark has the same on real workers
    assert code.count("import") >= 8, "the blocks are found"
    code = code.replace("/tmp/shop", str(tmp_path / "shop"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "epoch" in done.stdout
    assert "{'order': 7}" in done.stdout, "the consumer handles its message before it stops"
    assert "QueueInfo(name='message-bus'" in done.stdout
