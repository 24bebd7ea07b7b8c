"""The list of mutations is alive: its texts are in the package once, its tests exist."""

import pytest
from mutate import MOST_SURVIVORS, ROOT, Mutation, matching, mutated, mutations

EVERY = mutations()


@pytest.mark.parametrize(
    "number, mutation", [*enumerate(EVERY, 1)], ids=[line.breaks for line in EVERY]
)
def test_a_mutation_fits_its_file_once_and_its_tests_are_there(number, mutation):
    assert mutated(number, mutation) != ""
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"\ndef {name}(" in text, test


def test_some_are_chosen_by_number_file_or_text():
    every = {n: Mutation(f"{n}.py", "a", f"b{n}", [], f"c{n}") for n in range(1, 4)}
    choose = lambda *which: [*matching(every, list(which))]
    assert choose("2.py", "1") == [1, 2] and choose("b3", "c1") == [1, 3]
    assert choose("a") == [1, 2, 3]
    for which in ("4", "0", "none.py"):
        with pytest.raises(
            ValueError, match=f"^{which} is no mutation; write a number"
        ):
            choose("1", which)


def test_there_are_sixty_and_few_that_no_test_sees():
    assert len(EVERY) == len({(line.file, line.new) for line in EVERY}) >= 60
    assert sum(bool(line.survives) for line in EVERY) <= MOST_SURVIVORS


@pytest.mark.parametrize(
    "old, new", [("no such text", "another"), ("import", "another"), ("5e6", "5e6")]
)
def test_a_text_that_does_not_fit_is_one_sentence(old, new):
    mutation = Mutation("costs/clock.py", old, new, ["tests/test_costs.py"], "nothing")
    says = rf"mutation 7: '{old}' is \d+ times in costs/clock.py; write a text that is"
    with pytest.raises(ValueError, match=says):
        mutated(7, mutation)
