"""How an Aerospike store is named, connected, shared, shipped and described."""

from __future__ import annotations

import base64
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import aerospike
import pytest

from latchwork.errors import InvalidRequest, LatchworkError, Misconfigured, NotFound, Unavailable
from latchwork.store import NEVER, Add, Bin, Compute, Exists, Key, Put, Read, Removal, Touch, Update
from latchwork.store.aerospike.connection import config_of
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.aerospike.url import parse
from latchwork.store.model.expr import SERVER_NOW, SINCE_UPDATE
from tests.support.real_servers import or_skip
from tests.support.waiting import described
from tools import servers

KEY = Key("store", "k")


def put(store, key=KEY, **more):
    store.operate(key, Put("n", 1), exists=Exists.ANY, **more)
    return key


# ---- names


def test_a_url_names_hosts_namespace_user_and_options():
    target = parse("aerospike://me:p%40ss@a,b:3100,[::1]:3200/ns?connections=4&tls=true&tls_name=t&require_sc=1")
    assert target.hosts == (("a", 3000), ("b", 3100), ("::1", 3200))
    assert (target.namespace, target.user, target.password) == ("ns", "me", "p@ss")
    config = config_of(target)
    assert config["hosts"][0] == ("a", 3000, "t")
    assert config["max_conns_per_node"] == 4
    assert (config["user"], config["password"]) == ("me", "p@ss")
    assert config["tls"]["enable"]


def test_errors_name_a_store_by_what_is_its_url():
    where = "aerospike://a:3000,[fe80::1]:3200/ns"
    assert AerospikeStore.from_url(where).where == where


def test_a_url_may_have_been_read_with_the_end_of_its_line():
    target = parse("aerospike://h/test?connections=5\r\n")
    assert (target.namespace, target.options["connections"]) == ("test", 5)


@pytest.mark.parametrize("password", ["s3c[w", "s]", "\u2100", "a:b", "100%25"])
def test_a_password_may_hold_whatever_does_not_end_it(password):
    target = parse(f"aerospike://me:{password}@[::1]:3200,b/ns")
    assert (target.user, target.password) == ("me", password.replace("%25", "%"))
    assert target.hosts == (("::1", 3200), ("b", 3000))


def test_the_client_does_not_retry_and_waits_as_long_as_the_defaults_say():
    policies = config_of(parse("aerospike://h/ns"))["policies"]
    for name in ("read", "write", "operate", "remove", "batch", "batch_parent_write", "query"):
        assert (policies[name]["max_retries"], policies[name]["socket_timeout"]) == (0, 3000), name
        assert policies[name]["total_timeout"] == 5000
    assert policies["read"]["replica"] == policies["batch"]["replica"] == aerospike.POLICY_REPLICA_MASTER


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://h/ns", "http"),
        ("aerospike://h", "namespace"),
        ("aerospike://h/a/b", "a/b"),
        ("aerospike://h:port/ns", "host 'h'"),
        ("aerospike://h:99999/ns", "the port 1 to 65535"),
        ("aerospike:///ns", "host"),
        ("aerospike://[::1/ns", "host"),
        ("aerospike://a]:3000/ns", "host"),
        ("aerospike://[]:3000/ns", "host"),
        ("aerospike://h/ns?conections=4", "conections"),
        ("aerospike://h/ns?connections=0", "option connections"),
        ("aerospike://h/ns?socket_timeout=soon", "option socket_timeout"),
        ("aerospike://h/ns?tls=perhaps", "option tls"),
        ("aerospike://h/ns?auth=magic", "option auth"),
        ("aerospike://h/ns?tls_name=", "tls_name"),
    ],
)
def test_a_wrong_url_is_refused_naming_what_is_wrong(url, named):
    with pytest.raises(InvalidRequest, match=named.replace("?", ".")):
        AerospikeStore.from_url(url)


def test_the_password_is_in_no_representation_and_no_error():
    store = AerospikeStore.from_url(
        f"aerospike://me:secret@127.0.0.1:{servers.free_ports(1)[0]}/ns?connect_timeout=100"
    )
    with pytest.raises(LatchworkError) as refused:
        store._get(KEY, ())
    target = store._link.target
    for text in (repr(store), str(target), repr(target), str(refused.value), repr(refused.value.details)):
        assert "secret" not in text
        assert "ns" in text


def test_nothing_is_connected_before_the_first_use():
    store = AerospikeStore.from_url("aerospike://nowhere.invalid/ns")
    assert store._link.client is None


def test_no_server_is_unavailable_and_may_be_tried_again():
    store = AerospikeStore.from_url(f"aerospike://127.0.0.1:{servers.free_ports(1)[0]}/ns?connect_timeout=100")
    with pytest.raises(Unavailable) as refused:
        store._get(KEY, ())
    assert not isinstance(refused.value, Misconfigured)


# ---- connections


def test_the_configuration_has_no_key_that_the_client_does_not_know(aerospike_server):
    url = f"{aerospike_server.url}?cluster_name=latchwork-test&auth=internal"
    if isinstance(aerospike_server, servers.External):
        url = aerospike_server.url
    client = aerospike.client({**config_of(parse(url)), "validate_keys": True, "connect_timeout": 10_000}).connect()
    client.close()


def test_stores_of_one_url_share_a_connection_which_close_lets_go(aerospike_server):
    url = f"{aerospike_server.url}?connections=7"
    one, other = AerospikeStore.from_url(url), pickle.loads(pickle.dumps(AerospikeStore.from_url(url)))
    put(one)
    assert other._link.client is one._link.client is not None
    one.close()
    assert other._link.client is None
    assert other.get(KEY).bins == {"n": 1}


def test_a_client_of_the_callers_is_used_and_left_open(aerospike_server):
    client = servers.client_of(aerospike_server)
    store = AerospikeStore(client, aerospike_server.namespace)
    put(store)
    store.close()
    assert store.get(KEY).bins == {"n": 1}
    assert client.is_connected()
    client.close()


def test_a_store_around_a_client_cannot_be_pickled_and_says_what_to_do():
    with pytest.raises(InvalidRequest, match="from_url"):
        pickle.dumps(AerospikeStore(object(), "ns"))


def _child(store, results):
    results.put((os.getpid(), store.operate(KEY, Add("n", 1), Read("n"))))


def test_a_fork_gets_a_connection_of_its_own_and_ends_cleanly(aerospike_store):
    put(aerospike_store)
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    children = [fork.Process(target=_child, args=(aerospike_store, results)) for _ in range(2)]
    for child in children:
        child.start()
    answers = {results.get(timeout=20) for _ in children}
    for child in children:
        child.join(20)
    assert [child.exitcode for child in children] == [0, 0]
    assert {answer for _, answer in answers} == {(2,), (3,)}
    assert aerospike_store.get(KEY).bins == {"n": 3}


FORKED = """
import os, sys
import aerospike
from latchwork.errors import Misconfigured
from latchwork.store import NEVER, Add, Bin, Compute, Exists, Key, Put, Read, Removal, Touch, Update
from latchwork.store.aerospike.store import AerospikeStore
host, port, namespace = sys.argv[1:]
client = aerospike.client({"hosts": [(host, int(port))], "connect_timeout": 10_000}).connect()
store = AerospikeStore(client, namespace)
child = os.fork()
if child == 0:
    try:
        store.get(Key("store", "k"))
    except Misconfigured as refused:
        sys.exit(7 if "fork" in str(refused) else 1)
    sys.exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_client_of_the_callers_is_refused_in_a_fork(aerospike_server):
    place = [aerospike_server.host, str(aerospike_server.port), aerospike_server.namespace]
    done = subprocess.run(
        [sys.executable, "-c", FORKED, *place], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "7"


COLLECTED = """
import gc, os, sys
os.register_at_fork(after_in_child=gc.collect)  # as Python may at any moment: before anything of ours runs there
gc.disable()
from latchwork.store.aerospike.connection import Link
from latchwork.store.aerospike.url import parse
link = Link(parse(sys.argv[1]))
link.connect()
link.itself = link
del link
child = os.fork()
if child == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_store_that_nobody_holds_any_more_is_collected_in_a_forked_child_without_harm(aerospike_server):
    url = f"{aerospike_server.url}?connect_timeout=10000"
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED, url], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "7"


def test_threads_share_a_store(aerospike_store):
    put(aerospike_store)
    threads = [
        threading.Thread(target=lambda: [aerospike_store.operate(KEY, Add("n", 1)) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert aerospike_store.get(KEY).bins == {"n": 201}


# ---- what the server says and does


def test_describe_says_what_the_namespace_is(aerospike_server):
    info = described(AerospikeStore.from_url(aerospike_server.url))
    assert info.backend == "aerospike"
    assert info.record_size_limit == 1024 * 1024
    if isinstance(aerospike_server, servers.Asd):
        assert (info.edition, info.strong_consistency, info.nsup_period, info.replication_factor) == (
            "community", False, 2, 1,
        )  # fmt: skip


def test_the_only_node_is_the_master_of_every_record(aerospike_store):
    (loads,) = aerospike_store.mastered([Key("store", str(number)) for number in range(50)]).values()
    assert loads == 50


def test_a_record_is_counted_for_the_node_that_says_it_is_its_master():
    """The nodes tell their partitions as bits, the first one in the highest bit of the first byte."""
    keys = [Key("store", str(number)) for number in range(200)]
    evens = base64.b64encode(bytes([0b10101010] * 512)).decode()
    told = {"A": f"other:0,1,{evens};ns:0,1,{evens}", "B": f"ns:0,1,{base64.b64encode(bytes(512)).decode()}", "C": ""}
    store = AerospikeStore(Nodes(told), "ns")
    even = sum(aerospike.calc_digest("ns", *key)[0] % 2 == 0 for key in keys)  # the lowest bit of a partition's number
    assert 0 < even < len(keys)
    assert store.mastered(keys) == {"A": even, "B": 0, "C": 0}


def test_the_sets_that_have_records_on_any_node_are_told_once_by_name():
    one, two = "ns=ns:set=b:objects=1:tombstones=0", "ns=ns:set=empty:objects=0:tombstones=3"
    told = {"A": f"{one};{two};", "B": f"ns=ns:set=a:objects=7;{one};ns=ns:objects=2", "C": ""}
    assert AerospikeStore(Nodes(told), "ns").sets() == ["a", "b"]


class Nodes:
    """A client of nodes that answer so."""

    def __init__(self, told) -> None:
        self.told = told

    def info_all(self, command):
        return {node: (None, f"{command}\t{answer}\n") for node, answer in self.told.items()}


def test_strong_consistency_that_is_required_and_missing_is_refused_before_anything_else(aerospike_server):
    store = AerospikeStore.from_url(f"{aerospike_server.url}?require_sc=true")
    if described(store).strong_consistency:
        pytest.skip("this namespace is strongly consistent")
    with pytest.raises(Misconfigured, match="strong-consistency"):
        store.operate(KEY, Put("never", 1), exists=Exists.ANY)


def test_a_namespace_that_is_not_there_is_named(aerospike_server):
    store = AerospikeStore.from_url(f"aerospike://{aerospike_server.host}:{aerospike_server.port}/nowhere")
    with pytest.raises(Misconfigured, match="nowhere"):
        described(store)
    with pytest.raises(Misconfigured, match="namespace"):
        put(store)


def test_records_keep_their_keys(aerospike_store):
    key = put(aerospike_store, Key("store-keys", "named"))
    aerospike_store.ensure_index("store-keys", "n", int)
    assert [record.key for record in aerospike_store.query("store-keys", "n", 1)] == [key]


def test_an_index_is_of_the_set_the_bin_and_the_kind_that_were_asked_for(aerospike_store):
    for _ in range(2):
        aerospike_store.ensure_index("sto#re", "k#_n", int)
    for set_name, bin, kind in (("sto#re_k#", "n", int), ("sto#re", "k#_n", str)):
        with pytest.raises(InvalidRequest, match=r"set=sto#re:bin=k#_n:type=numeric"):
            aerospike_store.ensure_index(set_name, bin, kind)


def test_the_servers_time_is_the_same_in_reads_writes_and_new_records(aerospike_store):
    new = Key("store", "new")
    aerospike_store.delete(new)
    made, stored = aerospike_store.operate(
        new, Compute(SERVER_NOW), Put("now", SERVER_NOW), Read("now"), exists=Exists.CREATE
    )
    (written,) = aerospike_store.operate(new, Touch(), Compute(SERVER_NOW))
    read, since = aerospike_store.operate(new, Compute(SERVER_NOW), Compute(SINCE_UPDATE))
    assert made <= stored <= written <= read < made + 10_000
    assert 0 <= since <= read - written


def test_a_guard_costs_no_compile_after_the_first(aerospike_store, monkeypatch):
    from latchwork.store.aerospike import expr as aerospike_expr

    guard = Bin("n") >= 1
    put(aerospike_store)
    aerospike_store.operate(KEY, Add("n", 1), when=guard)
    monkeypatch.setattr(aerospike_expr, "_build", None)
    aerospike_store.operate(KEY, Add("n", 1), when=guard)


def test_a_ttl_without_nsup_says_what_to_set():
    with or_skip():
        server = servers.started(servers.Asd(nsup_period=0))
    try:
        store = AerospikeStore.from_url(server.url)
        with pytest.raises(Misconfigured, match="nsup-period"):
            put(store, ttl=60)
        (row,) = store.operate_many([Update(KEY, (Put("n", 1),), exists=Exists.ANY, ttl=60)])
        assert isinstance(row, Misconfigured)
        put(store)
        with pytest.raises(NotFound):
            store.operate(Key("store", "absent"), Add("n", 1))
    finally:
        server.close()


def test_a_record_that_has_expired_is_not_there_to_be_deleted(aerospike_store):
    """Also where the server has not removed it yet; and one whose second is not over is."""
    gone, back, alive, for_ever = (Key("store", name) for name in ("gone", "back", "alive", "for-ever"))
    for key, ttl in ((gone, 1), (back, 1), (alive, 60), (for_ever, NEVER)):
        put(aerospike_store, key, ttl=ttl)
    servers.until(lambda: aerospike_store.get(gone) is None and aerospike_store.get(back) is None, pause=0.01)
    assert aerospike_store.delete(gone) is False
    assert aerospike_store.delete_many([Removal(key) for key in (back, alive, for_ever)]) == [False, True, True]
    servers.until(lambda: aerospike_store.delete(put(aerospike_store, gone, ttl=1)))  # a busy machine may come too late
