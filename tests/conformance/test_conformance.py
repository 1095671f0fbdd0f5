"""The conformance page has no wrong or stale cell, and trainers still behave as recorded."""

import pytest

from tests.conformance.conformance_cases import CASES, SCALES, problem_of
from tests.conformance.record import PAGE, PYTHONS, driven, page, python_of, recorded

RECORDED = recorded()


def test_every_trainer_has_a_record_of_every_case():
    assert RECORDED.keys() == SCALES.keys() == PYTHONS.keys()
    for trainer, said in RECORDED.items():
        assert said["cases"].keys() == CASES.keys(), trainer


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("trainer", SCALES)
def test_guarded_cells_are_right(trainer, name):
    assert problem_of(trainer, name, RECORDED[trainer]["cases"][name]["guarded"]) is None


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.advantages])
def test_wrong_cells_are_found(name):
    """Negative control: unguarded trainers do not give the expected results."""
    wrong = [
        problem_of(trainer, name, said["cases"][name]["alone"])
        for trainer, said in RECORDED.items()
        if "absent" not in said["cases"][name]["alone"] and trainer != "prime_rl"
    ]
    assert any(wrong) or name == "fan_out"


def test_page_matches_the_records():
    written = PAGE.read_text()
    assert written == page(), "stale: python -m tests.conformance.record"


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("trainer", SCALES)
def test_trainer_behaves_as_recorded(trainer):
    if not python_of(trainer).exists():
        pytest.skip(f"needs the environment of {trainer}: make test-across")
    found = driven(trainer)
    assert found["release"] == RECORDED[trainer]["release"]
    for name, cells in found["cases"].items():
        assert problem_of(trainer, name, cells["guarded"]) is None, name
        for key, cell in cells.items():
            assert_alike(cell, RECORDED[trainer]["cases"][name][key], f"{name} {key}")


def assert_alike(found, known, where):
    """Compare numbers within machine differences and all else exactly, except messages."""
    assert found.keys() == known.keys(), where
    for key, value in found.items():
        if key == "advantages":
            missing = [i for i, a in enumerate(value) if a is None]
            assert missing == [i for i, a in enumerate(known[key]) if a is None], where
            numbers = [a or 0.0 for a in known[key]]
            assert [a or 0.0 for a in value] == pytest.approx(numbers, abs=2e-3), where
        elif key == "moved":
            assert (value == 0) == (known[key] == 0), where
        elif key != "error":
            assert value == known[key], where
