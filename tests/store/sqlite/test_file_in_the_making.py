"""A file that another thread, or process, makes at the moment at which it is opened."""

from __future__ import annotations

from pathlib import Path

from latchwork.store.sqlite import file


class InTheMaking:
    """A connection whose first questions are answered half before and half after the file was made."""

    def __init__(self) -> None:
        self.answers = [0, file.LAYOUT, 1]

    def execute(self, question):
        made = {"PRAGMA application_id": file.APPLICATION_ID, "PRAGMA user_version": file.LAYOUT}
        self.answer = self.answers.pop(0) if self.answers else made.get(question, 1)
        return self

    def fetchone(self):
        return (self.answer,)


def test_a_file_that_is_made_while_it_is_looked_at_is_no_other_programs_database():
    assert file._to_do(InTheMaking(), Path("s.db")) == ()
