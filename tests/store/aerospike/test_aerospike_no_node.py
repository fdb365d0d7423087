"""What the client answers where no node can be reached, row by row of docs/aerospike-client.md; no server is needed.

`tests/store/aerospike/test_aerospike_outages.py` shows on real servers that the client does answer so.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aerospike import exception as driver

from latchwork.errors import InvalidRequest, LatchworkError, OutcomeUnknown, Unavailable, Unreadable
from latchwork.retry import RetryPolicy, again
from latchwork.store import Key, Put, Read, Removal, Update
from latchwork.store.aerospike import AerospikeStore, info
from latchwork.testing.clock import ManualClock

KEYS = [Key("edge", name) for name in "abc"]
PUTS = [Update(key, (Put("n", 1),)) for key in KEYS]
READS = [Update(key, (Read("n"),)) for key in KEYS]
REMOVALS = [Removal(key) for key in KEYS]
UNTOUCHED = (0, False, 0)
"""A row as it was made: the result, whether it is in doubt, the generation (None = no record)."""
ANSWERED = (0, False, 7)
REMOVED = (0, False, 0)
SILENT = (-15, False, None)
SENT = (-15, True, None)
NO_NODE, NO_CONNECTION, TIMEOUT, ROWS_FAILED = 1, -10, 9, -16


@pytest.fixture(autouse=True)
def _introduced(monkeypatch):
    """The namespace has been spoken of, so that only what a test asks for is asked."""
    monkeypatch.setattr(info, "_said", {"ns"})


class Client:
    """A client whose batches end with this result and these rows, and whose other calls answer as told."""

    def __init__(self, result=0, *rows, **answers) -> None:
        self.result, self.rows, self.answers = result, rows, answers

    def batch_write(self, batch, _policy):
        batch.result = self.result
        for row, (result, in_doubt, generation) in zip(batch.batch_records, self.rows, strict=True):
            row.result, row.in_doubt, row.record = result, in_doubt, _record(generation)

    def batch_read(self, *_):
        rows = [
            SimpleNamespace(result=result, in_doubt=in_doubt, message=None, record=_record(generation))
            for result, in_doubt, generation in self.rows
        ]
        return SimpleNamespace(result=self.result, batch_records=rows)

    def __getattr__(self, name):
        answer = self.answers[name]
        if isinstance(answer, Exception):

            def call(*_, **__):
                raise answer

            return call
        return lambda *_, **__: answer


def _record(generation):
    return None if generation is None else ((), {"ttl": 0, "gen": generation}, {"n": 1})


def store(client, **options):
    made = AerospikeStore(client, "ns", **options)
    made.policy = RetryPolicy(attempts=1)
    return made


def kinds(rows):
    return [row if isinstance(row, bool) else type(row) for row in rows]


# ---- batches of writes


@pytest.mark.parametrize(
    ("result", "rows", "outcomes"),
    [
        (NO_NODE, [UNTOUCHED] * 3, [Unavailable] * 3),
        (NO_CONNECTION, [SILENT] * 3, [Unavailable] * 3),
        (NO_CONNECTION, [SENT] * 3, [OutcomeUnknown] * 3),
        (TIMEOUT, [SILENT] * 3, [Unavailable] * 3),
        (TIMEOUT, [SENT] * 3, [OutcomeUnknown] * 3),
        (TIMEOUT, [ANSWERED, SENT, SILENT], [tuple, OutcomeUnknown, Unavailable]),
        (TIMEOUT, [UNTOUCHED] * 3, [OutcomeUnknown] * 3),
        (NO_CONNECTION, [UNTOUCHED, ANSWERED, SENT], [OutcomeUnknown, tuple, OutcomeUnknown]),
        (ROWS_FAILED, [ANSWERED, (11, False, None), (-8, False, None)], [tuple, Unavailable, Unavailable]),
        (ROWS_FAILED, [ANSWERED, SILENT, SENT], [tuple, OutcomeUnknown, OutcomeUnknown]),
        (0, [ANSWERED, SILENT, UNTOUCHED], [tuple, OutcomeUnknown, OutcomeUnknown]),
        (0, [(0, False, None)] * 3, [OutcomeUnknown] * 3),
        (0, [ANSWERED] * 3, [tuple] * 3),
    ],
)
def test_a_row_is_applied_where_it_was_answered_and_never_applied_only_where_it_was_not_sent(result, rows, outcomes):
    assert kinds(store(Client(result, *rows)).operate_many(PUTS)) == outcomes


@pytest.mark.parametrize(
    ("result", "rows", "outcomes"),
    [
        (NO_NODE, [UNTOUCHED] * 3, [Unavailable] * 3),
        (NO_CONNECTION, [SILENT] * 3, [Unavailable] * 3),
        (NO_CONNECTION, [SENT] * 3, [OutcomeUnknown] * 3),
        (TIMEOUT, [REMOVED, (2, False, None), SENT], [True, False, OutcomeUnknown]),
        (TIMEOUT, [REMOVED] * 3, [OutcomeUnknown] * 3),
        (ROWS_FAILED, [REMOVED, (11, False, None), (2, False, None)], [True, Unavailable, False]),
        (0, [REMOVED, REMOVED, (2, False, None)], [True, True, False]),
    ],
)
def test_a_removal_counts_as_done_only_in_a_batch_that_was_sent(result, rows, outcomes):
    assert kinds(store(Client(result, *rows)).delete_many(REMOVALS)) == outcomes


@pytest.mark.parametrize(
    ("result", "row"), [(NO_NODE, UNTOUCHED), (NO_CONNECTION, SILENT), (TIMEOUT, SILENT), (0, UNTOUCHED), (0, SILENT)]
)
def test_a_row_that_only_reads_is_unavailable_where_it_was_not_answered(result, row):
    assert kinds(store(Client(result, *[row] * 3)).operate_many(READS)) == [Unavailable] * 3


def test_a_batch_without_a_node_says_that_none_is_known():
    rows = store(Client(NO_NODE, *[UNTOUCHED] * 3)).operate_many(PUTS)
    assert all("no node" in str(row) for row in rows)
    assert all(again(row) for row in rows)


@pytest.mark.parametrize(
    ("result", "row", "said"),
    [
        (NO_CONNECTION, SILENT, "connection"),
        (NO_CONNECTION, UNTOUCHED, "connection"),
        (TIMEOUT, SENT, "answered"),
        (-14, SILENT, "sends it none"),
    ],
)
def test_a_row_that_reached_no_server_does_not_say_that_the_server_refused_it(result, row, said):
    for outcome in store(Client(result, *[row] * 3)).operate_many(PUTS):
        assert said in str(outcome)
        assert "refused" not in str(outcome)


# ---- batches of reads


@pytest.mark.parametrize("code", [NO_NODE, NO_CONNECTION, TIMEOUT])
@pytest.mark.parametrize("rows", [[], [ANSWERED]])
def test_a_batch_of_reads_with_fewer_rows_than_keys_is_unavailable(code, rows):
    with pytest.raises(Unavailable) as failed:
        store(Client(code, *rows)).get_many(KEYS)
    assert again(failed.value)
    assert ("no node" in str(failed.value)) == (code == NO_NODE)


@pytest.mark.parametrize("row", [SILENT, UNTOUCHED, (0, False, None), (9, False, None)])
def test_a_read_that_was_not_answered_is_unavailable_and_never_absent(row):
    with pytest.raises(Unavailable):
        store(Client(0, ANSWERED, row, ANSWERED)).get_many(KEYS)


def test_a_record_that_the_client_cannot_decode_is_unreadable_and_named():
    with pytest.raises(Unreadable, match="name='b'"):
        store(Client(0, ANSWERED)).get_many(KEYS)


# ---- answers that the client cannot decode, or only in part

CUT_SHORT = -1


class Undecoding(Client):
    """A client that cannot decode the record "b". A batch with it is cut short there: its row looks answered,
    and the rows behind it have no answer. `asked`: the records of each batch, `failing`: rows that fail by themselves.
    """

    def __init__(self, **failing) -> None:
        super().__init__()
        self.asked, self.failing = [], failing

    def _answer(self, names):
        self.asked.append("".join(names))
        self.result, end = (CUT_SHORT, names.index("b")) if "b" in names else (0, len(names))
        self.rows = [self.failing.get(name, ANSWERED if at <= end else SILENT) for at, name in enumerate(names)]

    def batch_write(self, batch, policy):
        self._answer([row.key[2] for row in batch.batch_records])
        super().batch_write(batch, policy)

    def batch_read(self, wanted, *given):
        self._answer([name for *_, name in wanted])
        return super().batch_read(wanted, *given)


def test_a_batch_of_reads_that_was_cut_short_is_halved_until_it_names_the_record():
    client = Undecoding()
    with pytest.raises(Unreadable, match="name='b'"):
        store(client).get_many(KEYS)
    assert client.asked == ["abc", "a", "bc", "b"]


def test_a_batch_of_reads_that_was_not_cut_short_is_asked_once():
    client = Undecoding()
    assert [record.bins for record in store(client).get_many([KEYS[0], KEYS[2]])] == [{"n": 1}] * 2
    assert client.asked == ["ac"]


def test_a_row_that_fails_by_itself_in_a_batch_that_was_cut_short_keeps_its_own_error():
    with pytest.raises(Unavailable):
        store(Undecoding(b=(18, False, None))).get_many(KEYS[1:2])
    (row,) = store(Undecoding(b=(18, False, None))).operate_many(PUTS[1:2])
    assert type(row) is Unavailable


def test_a_read_that_was_sent_alone_is_not_sent_again_where_its_batch_was_cut_short():
    client = Undecoding(b=SILENT)
    (row,) = store(client).operate_many(READS[1:2])
    assert isinstance(row, LatchworkError)
    assert client.asked == ["b"]


def test_of_a_batch_that_was_cut_short_writes_are_in_doubt_and_each_read_is_asked_again():
    client = Undecoding(c=(18, False, None))
    updates = [
        PUTS[0],
        PUTS[1],
        PUTS[2],
        Update(Key("edge", "d"), (Put("n", 1),)),
        Update(Key("edge", "e"), READS[0].ops),
    ]
    assert kinds(store(client).operate_many(updates)) == [*[OutcomeUnknown] * 2, Unavailable, OutcomeUnknown, tuple]
    assert client.asked == ["abcde", "e"]


def test_a_read_among_writes_that_cannot_be_decoded_is_unreadable_alone():
    client = Undecoding()
    rows = store(client).operate_many([PUTS[0], READS[1], READS[2]])
    assert kinds(rows) == [OutcomeUnknown, Unreadable, tuple]
    assert client.asked == ["abc", "b", "c"]


def test_a_write_whose_own_answer_cannot_be_decoded_was_made():
    (row,) = store(Undecoding()).operate_many(PUTS[1:2])
    assert type(row) is Unreadable
    assert "the update was made" in str(row)


class Lenient(Client):
    """A client that meets text in the record "b" that is no UTF-8, as it decodes its answers."""

    def batch_write(self, batch, policy):
        super().batch_write(batch, policy)
        self._spoil(batch.batch_records)

    def batch_read(self, *given):
        batch = super().batch_read(*given)
        self._spoil(batch.batch_records)
        return batch

    def _spoil(self, rows):
        rows[1].record[2]["t"] = [b"\xff".decode()]


def test_text_that_is_no_utf_8_fails_its_row_alone_and_a_batch_of_reads_with_its_name():
    rows = store(Lenient(TIMEOUT, ANSWERED, ANSWERED, SENT)).operate_many(PUTS)
    assert kinds(rows) == [tuple, Unreadable, OutcomeUnknown]
    assert "the bin 't' has text that is not UTF-8" in str(rows[1])
    with pytest.raises(Unreadable, match=r"name='b'.*the bin 't'"):
        store(Lenient(0, ANSWERED, ANSWERED, ANSWERED)).get_many(KEYS)


# ---- what the servers say of themselves

NO_ANSWER = driver.ClientError(-1, "Invalid info operation.", "info_random_node.c", 92, False)
NO_RANDOM_NODE = driver.ClientError(-1, "as_node_get_random() failed", "aerospike_index.c", 57, False)
INDEX = "ns=ns:indexname=edge_n:set=edge:bin=n:type=numeric:indextype=default:context=null:exp=null:state=RW"


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.describe(),
        lambda store: store.ensure_index("edge", "n", int),
        lambda store: store.mastered(KEYS),
        lambda store: store.sets(),
    ],
    ids=["describe", "ensure_index", "mastered", "sets"],
)
def test_no_node_to_ask_is_unavailable(ask):
    with pytest.raises(Unavailable, match="no node") as failed:
        ask(store(Client(info_random_node=NO_ANSWER, info_all={}), seams=ManualClock()))
    assert again(failed.value)


def test_a_node_that_does_not_answer_is_named_with_what_went_wrong():
    silent = driver.TimeoutError(9, " from 10.0.0.1:3000", None, None, False)
    with pytest.raises(Unavailable, match=r"no answer in time \(from 10\.0\.0\.1:3000"):
        store(Client(info_random_node=silent)).describe()


def test_an_index_that_no_node_can_make_is_unavailable():
    client = Client(info_random_node="sindex-list\t\n", index_single_value_create=NO_RANDOM_NODE, info_all={})
    with pytest.raises(Unavailable) as failed:
        store(client).ensure_index("edge", "n", int)
    assert again(failed.value)


def test_an_index_whose_nodes_are_gone_while_it_is_waited_for_is_unavailable():
    answers = iter([f"sindex-list\t{INDEX}\n", NO_ANSWER])

    class Leaving(Client):
        def info_random_node(self, _):
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

    with pytest.raises(Unavailable):
        store(Leaving(info_all={}), seams=ManualClock()).ensure_index("edge", "n", int)


def test_a_query_of_an_empty_cluster_is_unavailable():
    empty = driver.ServerError(1, "Command failed because cluster is empty.", "as_cluster.c", 185, False)
    found = SimpleNamespace(where=lambda _: None, results=Client(results=empty).results)
    with pytest.raises(Unavailable) as failed:
        store(Client(query=found)).query("edge", "n", 1)
    assert again(failed.value)


# ---- what is not an error of the client at all

UNDECODABLE = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
BROKEN = SystemError("<method 'operate_ordered'> returned a result with an exception set")


@pytest.mark.parametrize("failure", [UNDECODABLE, BROKEN])
def test_a_reply_that_cannot_be_taken_leaves_a_write_in_doubt_and_a_read_unavailable(failure):
    calls = (
        "get", "select", "operate", "operate_ordered", "remove", "info_random_node", "info_all",
        "index_single_value_create",
    )  # fmt: skip
    broken = store(Client(**dict.fromkeys(calls, failure)))
    broken._link._info = SimpleNamespace(default_ttl=0)
    for write in (lambda: broken.operate(KEYS[0], Put("n", 1)), lambda: broken.delete(KEYS[0])):
        with pytest.raises(OutcomeUnknown):
            write()
    broken._link._info = None
    for read in (
        lambda: broken.get(KEYS[0]),
        lambda: broken.get(KEYS[0], "n"),
        lambda: broken.operate(KEYS[0], Read("n")),
        broken.describe,
        lambda: broken.mastered(KEYS),
        lambda: broken.ensure_index("edge", "n", int),
    ):
        with pytest.raises(Unavailable):
            read()


def test_what_the_caller_gave_wrong_is_still_refused_before_anything_is_sent():
    with pytest.raises(InvalidRequest):
        store(Client(get=TypeError("a key must be text"))).get(KEYS[0])
