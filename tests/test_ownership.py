"""A store or a queue whose files others could change is used, and the log says so."""

from __future__ import annotations

import os

import pytest

from latchwork.queue import PagedQueue
from latchwork.store import Exists, Key, Put, SQLiteStore


def use_store(folder):
    SQLiteStore(folder / "s.db").operate(Key("s", "k"), Put("n", 1), exists=Exists.ANY)
    return folder / "s.db"


def use_queue(folder):
    with PagedQueue.open(folder, "q") as queue:
        queue.append(b"x")
    return folder / "q-allMeta"


@pytest.mark.parametrize("use", [use_store, use_queue])
def test_files_that_others_may_write_to_are_named_once_in_the_log(use, tmp_path, caplog):
    path = use(tmp_path)
    assert caplog.text == ""
    path.chmod(0o666)
    for _ in range(2):
        use(tmp_path)
    assert caplog.text.count("may be written to by other users (mode 666)") == 1
    assert str(path) in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_named_in_the_log(tmp_path, caplog):
    path = use_store(tmp_path)
    os.chown(path, 12345, -1)
    use_store(tmp_path)
    assert f"{path} belongs to another user (12345)" in caplog.text
