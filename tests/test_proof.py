"""The closing table: figures add up, floors fail a run of all tests, and only that."""

from __future__ import annotations

import pytest

from tests.support.proof import KINDS, Proof, floors

FLOORS = floors()
FAULTS = ("random faults", "a", {f"F{number} x": 1 for number in KINDS})
ENOUGH = [FAULTS, *((layer, "a", floors) for layer, floors in FLOORS.items())]


def proof_of(*rows):
    return Proof([*ENOUGH, *rows])


def test_figures_of_one_subject_add_up_and_faults_over_all_layers():
    proof = Proof(
        [("processes", "a", {"killed": 1, "F1 x": 2}), ("processes", "a", {"killed": 2}), ("b", "c", {"F1 x": 1})]
    )
    assert proof.sums("processes")["killed"] == 3
    assert proof.faults() == {"F1 x": 3}


def test_nothing_is_missed_where_every_floor_is_reached():
    proof = proof_of(("mutants", "a", {"caught": FLOORS["mutants"]["seeded"]}))
    assert proof.short_of(FLOORS) == []


@pytest.mark.parametrize("layer", FLOORS)
def test_a_layer_that_did_nothing_is_under_its_floor(layer):
    rows = [row for row in ENOUGH if row[0] != layer]
    assert any(line.startswith(f"{layer}:") for line in Proof(rows).short_of(FLOORS))


@pytest.mark.parametrize("number", KINDS)
def test_a_fault_that_never_happened_is_told(number):
    faults = {name: times for name, times in FAULTS[2].items() if name != f"F{number} x"}
    lacking = Proof([*ENOUGH[1:], (*FAULTS[:2], faults)]).short_of(FLOORS)
    assert f"no fault F{number} has happened" in lacking
    assert sum("has happened" in line for line in lacking) == 1


@pytest.mark.parametrize("bad", ["undecided", "violated"])
def test_what_must_be_nought_is_told(bad):
    assert f"random faults: 1 {bad}" in proof_of(("random faults", "a", {bad: 1})).short_of(FLOORS)


def test_a_mutant_that_was_not_caught_is_told():
    assert "mutants: 1 not caught" in Proof([("mutants", "a", {"seeded": 30, "caught": 29})]).short_of(FLOORS)


def test_the_table_fits_80_columns_whatever_the_figures():
    figures = {"sites": 999, "runs": 10**6, "calls": 10**8, "histories": 10**6, "undecided": 0, "violated": 0}
    lines = Proof([(layer, "circular", {**figures, "F13 generation wrap": 10**8}) for layer in FLOORS]).table()
    assert max(map(len, lines)) <= 80


def test_a_run_of_all_tests_under_a_floor_fails_and_says_so(project):
    done = project()
    assert done.returncode == 1
    assert "NOT GOOD ENOUGH: processes: 7 killed, at least 15 are asked for" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["inner/test_one.py"], ["-k", "one"], ["--collect-only"]], ids=" ".join)
def test_a_run_of_some_tests_has_no_floor(project, arguments):
    done = project(*arguments)
    assert done.returncode == 0
    assert "NOT GOOD ENOUGH" not in done.stdout


@pytest.mark.long
def test_one_worker_has_all_tests_of_a_file(project, tmp_path):
    """Or each worker would start a server, and a Spark, for the few tests that it takes of a file."""
    tests = "def test_one(number): pass\n"
    many = f"import pytest\n@pytest.mark.parametrize('number', range(40))\n{tests}"
    (tmp_path / "inner" / "test_many.py").write_text(many)
    done = project("-vv", "-n", "2", "--dist", "loadgroup", "inner/test_many.py")
    assert done.returncode == 0
    ran = [line for line in done.stdout.splitlines() if line.startswith("[gw")]
    assert len(ran) == 40
    assert len({line.partition("]")[0] for line in ran}) == 1
