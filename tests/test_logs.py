"""What is logged never raises, whatever the program's log handlers and filters do."""

from __future__ import annotations

import logging
import threading

import pytest

from latchwork import logs
from latchwork.logs import Log

LOG = Log("latchwork.test")


@pytest.fixture
def raising(monkeypatch):
    """Has a handler that raises the failure it is given; no failure was shown before."""
    monkeypatch.setattr(logs, "_shown", set())
    logger, handlers = logging.getLogger("latchwork.test"), []

    def add(failure):
        class Shipper(logging.Handler):
            def handle(self, record):
                raise failure

        handlers.append(Shipper())
        logger.addHandler(handlers[-1])

    yield add
    for handler in handlers:
        logger.removeHandler(handler)


def test_a_handler_that_raises_is_shown_once_for_each_type_and_ends_nothing(raising, capsys):
    raising(OSError("the log shipper has no connection"))
    for say in (LOG.warning, LOG.error, LOG.exception, LOG.warning):
        say("the work failed")
    LOG.log(logging.WARNING, "the work failed")
    assert capsys.readouterr().err.count("OSError: the log shipper has no connection") == 1


def test_nothing_is_shown_where_the_program_wants_no_failures_of_handlers(raising, capsys, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    raising(OSError("the log shipper has no connection"))
    LOG.warning("the work failed")
    assert capsys.readouterr().err == ""


def test_an_interrupt_in_a_handler_is_not_swallowed(raising):
    raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        LOG.warning("the work failed")


def test_a_record_names_the_line_that_logged_it(caplog):
    with caplog.at_level(logging.DEBUG, "latchwork.test"):
        for say in (LOG.debug, LOG.info, LOG.warning, LOG.error, LOG.exception):
            say("%s failed", "the work")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR", "ERROR"]
    assert {(record.filename, record.funcName, record.getMessage()) for record in caplog.records} == {
        ("test_logs.py", "test_a_record_names_the_line_that_logged_it", "the work failed")
    }


def test_a_process_that_is_to_end_still_logs_the_traceback_of_what_is_handled(caplog, monkeypatch):
    monkeypatch.setattr(logs, "_ends", [])
    monkeypatch.setattr(logs, "LEAVING", 60.0)
    logs.ends()
    try:
        raise ValueError("a defect")
    except ValueError:
        LOG.exception("the work failed")
        LOG.warning("it goes on")
    failed, goes_on = caplog.records
    assert failed.exc_info[0] is ValueError
    assert goes_on.exc_info is None


@pytest.mark.parametrize("blocks", [True, False])
def test_the_interpreter_ends_without_the_log_handlers_only_where_one_blocks(monkeypatch, blocks):
    gone, go_on = [], threading.Event()

    class Shipper(logging.Handler):
        def flush(self):
            if blocks:
                go_on.wait(30)

    logger, shipper = logging.getLogger("latchwork.test"), Shipper()
    monkeypatch.setattr(logs, "LEAVING", 0.02 if blocks else 30.0)
    monkeypatch.setattr(logs.atexit, "unregister", gone.append)
    logger.addHandler(shipper)
    try:
        logs.let_end()
    finally:
        logger.removeHandler(shipper)
        go_on.set()
    assert gone == ([logging.shutdown] if blocks else [])
