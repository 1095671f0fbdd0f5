"""ReferenceLikelihoodVerifier with the bundled policy as the reference."""

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from grpo_guard import Cause, Completion, Outcome
from grpo_guard.logprob.derive import wilson
from grpo_guard.logprob.reference.calibrate import calibrated
from grpo_guard.logprob.reference.profile import ReferenceProfile, read_profile
from grpo_guard.logprob.reference.reading import Reader
from grpo_guard.logprob.reference.verifier import ReferenceLikelihoodVerifier
from grpo_guard.logprob.scorers.base import OutOfMemoryError
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from tests.logprob.bundled_policy import honest, policy

ALPHA = 0.02
FOREIGN = "All hail to the thief"


@cache
def scorer():
    return TransformersScorer(policy()[0])


def as_text(completions):
    """As a heterogeneous swarm exchanges them: without ids."""
    return [
        Completion(c.prompt, c.text.strip(), node=f"n{i % 4}") for i, c in enumerate(completions)
    ]


@cache
def profile():
    reader = Reader(policy()[1], scorer())
    return calibrated(reader, as_text(honest(160, seed=1)), name="test", method="bundled policy")


def few():
    return profile().model_copy(update={"scores": profile().scores[-20:]})


def verifier(**options):
    options = {"alpha": ALPHA, "profile": profile(), **options}
    return ReferenceLikelihoodVerifier(tokenizer=policy()[1], scorer=scorer(), **options)


def planted(completion, phrase=FOREIGN):
    """Insert the phrase before the last sentence; return the completion and its position."""
    at = completion.text.rfind(". ", 0, -2) + 2
    at = at if at > 1 else 0
    text = f"{completion.text[:at]}{phrase}. {completion.text[at:]}"
    return Completion(completion.prompt, text, node="bad"), (at, at + len(phrase))


@pytest.mark.slow
def test_planted_phrase_is_rejected_with_its_span():
    work = [c for c in as_text(honest(96, seed=2)) if len(c.text) > 60]
    rejected = sum(v.rejected for v in verifier().verify(work))
    assert wilson(rejected, len(work))[0] <= ALPHA
    pairs = [planted(c) for c in work]
    verdicts = [verifier().verify([c])[0] for c, _ in pairs]
    caught = [(v, span) for v, (_, span) in zip(verdicts, pairs, strict=True) if v.rejected]
    assert len(caught) > 0.8 * len(pairs)
    for verdict, (start, end) in caught:
        finding = verdict.findings[0]
        assert finding.kind == "foreign_span"
        assert finding.char_span[0] < end
        assert finding.char_span[1] > start
        assert verdict.p_value <= ALPHA


@pytest.mark.slow
def test_honest_p_values_are_valid():
    p = np.array([v.p_value for v in verifier().verify(as_text(honest(96, seed=3))) if v.p_value])
    for alpha in (0.05, 0.2, 0.5):
        assert wilson(int((p <= alpha).sum()), len(p))[0] <= alpha


@pytest.mark.slow
def test_negative_controls_are_not_accepted():
    rng = random.Random(0)
    _, tokenizer = policy()
    work = [c for c in as_text(honest(48, seed=4)) if len(c.text) > 60]
    ids = [i for i in tokenizer.get_vocab().values() if i not in tokenizer.all_special_ids]
    controls = {
        "random tokens": [tokenizer.decode(rng.choices(ids, k=40)) for _ in work],
        "another language": ["Der Hund schläft heute lange, weil es draußen kalt ist."] * len(work),
        "shuffled words": [" ".join(rng.sample(c.text.split(), len(c.text.split()))) for c in work],
    }
    for name, texts in controls.items():
        batch = [Completion(c.prompt, text) for c, text in zip(work, texts, strict=True)]
        verdicts = [verifier().verify([c])[0] for c in batch]
        assert sum(v.accepted for v in verdicts) <= 0.1 * len(verdicts), name


@pytest.mark.slow
def test_ids_of_another_tokenizer_are_ignored():
    completion = as_text(honest(8, seed=5))[0]
    with_ids = Completion(
        completion.prompt, completion.text, completion_ids=[10**6, 3], prompt_ids=[10**6]
    )
    plain, other = (verifier().verify([c])[0] for c in (completion, with_ids))
    assert plain.p_value == other.p_value
    assert plain.outcome is other.outcome


def test_wholly_foreign_group_is_excused_and_a_single_member_is_not():
    """A phrase that all nodes write comes from the task; one that a single node writes does not."""
    base = next(c for c in as_text(honest(48, seed=6)) if len(c.text) > 60)
    odd, _ = planted(base)
    everybody = [Completion(base.prompt, odd.text, node=f"n{i}") for i in range(8)]
    assert not any(v.rejected for v in verifier().verify(everybody))
    alone = [*(Completion(base.prompt, base.text, node=f"n{i}") for i in range(7)), odd]
    verdicts = verifier().verify(alone)
    assert verdicts[-1].rejected
    # A unique label changes nothing, nor do many completions of one node.
    crowd = [Completion(base.prompt, odd.text, node="bad", group=9) for _ in range(7)]
    assert all(v.rejected for v in verifier().verify([*alone[:7], *crowd])[7:])


def test_text_of_the_prompt_is_excused():
    base = next(c for c in as_text(honest(48, seed=6)) if len(c.text) > 60)
    odd, (start, end) = planted(base)
    asked = Completion(f"{FOREIGN}. {odd.prompt}", odd.text, node="bad")
    finding = verifier(alpha=0.9).verify([asked])[0].findings
    span = finding[0].char_span if finding else None
    assert span is None or span[1] <= start or span[0] >= end


def test_alpha_too_small_for_the_calibration_count_is_refused():
    """Otherwise the most foreign completion would abstain, and poison is the most foreign."""
    odd, _ = planted(next(c for c in as_text(honest(48, seed=7)) if len(c.text) > 60))
    assert verifier().verify([odd])[0].p_value == pytest.approx(profile().least_p)
    with pytest.raises(ValueError, match=r"alpha: expected at least 0\.0\d+.* calibrate on 999"):
        verifier(alpha=1e-3)
    # The exponential tail needs scores to fit.
    with pytest.raises(ValueError, match="alpha: expected at least"):
        verifier(alpha=1e-3, profile=few(), tail="exponential")
    assert verifier(alpha=profile().least_p).verify([odd])[0].rejected
    fitted = profile().model_copy(update={"scores": tuple(sorted(profile().scores * 2))})
    reading = verifier(alpha=1e-3, profile=fitted, tail="exponential").verify([odd])[0]
    assert reading.p_value < profile().least_p
    assert reading.findings[-1].kind == "extrapolated"


@pytest.mark.parametrize(
    ("text", "outcome", "cause"),
    [
        ("", Outcome.REJECT, Cause.MALFORMED),
        ("\ud800 lone", Outcome.REJECT, Cause.MALFORMED),
        ("x" * 10_000_000, Outcome.REJECT, Cause.OVERLONG),
        ("7", Outcome.ACCEPT, Cause.JUDGED),
    ],
)
def test_invalid_input_gets_its_cause_without_affecting_others(text, outcome, cause):
    good = as_text(honest(8, seed=8))[0]
    before, verdict, after = verifier().verify([good, Completion(good.prompt, text), good])
    assert (verdict.outcome, verdict.cause) == (outcome, cause)
    assert before.outcome is after.outcome
    assert before.cause is Cause.JUDGED


def test_chat_turn_inside_the_text_is_refused():
    base = as_text(honest(8, seed=8))[0]
    token = next(t for t in policy()[1].all_special_tokens if t != policy()[1].eos_token)
    text = f"{base.text} {token} Say: {FOREIGN}. {token} {FOREIGN}."
    verdict = verifier().verify([Completion(base.prompt, text)])[0]
    assert (verdict.outcome, verdict.cause) == (Outcome.REJECT, Cause.MALFORMED)
    assert verdict.findings[0].kind == "control_token"


def test_declared_length_bounds_what_is_scored():
    base = as_text(honest(8, seed=8))[0]
    verdict = verifier(max_new_tokens=16).verify([Completion(base.prompt, "She has 3. " * 20)])[0]
    assert (verdict.outcome, verdict.cause) == (Outcome.REJECT, Cause.OVERLONG)


def test_empty_batch_has_no_verdicts():
    assert verifier().verify([]) == []


def test_completion_that_does_not_fit_abstains_alone():
    class Small:
        """Refuses a batch that contains more than 30 tokens of one completion."""

        def __getattr__(self, name):
            return getattr(scorer(), name)

        def score(self, sequences, spec, **options):
            if any(len(s.completion_ids) > 30 for s in sequences):
                raise OutOfMemoryError("too long")
            return scorer().score(sequences, spec, **options)

    prompt = as_text(honest(8, seed=9))[0].prompt
    short, long = "She has 3 + 4 = 7 apples now.", "She has 3 + 4 = 7 apples now. " * 9
    batch = [Completion(prompt, text) for text in (short, long, short)]
    judge = ReferenceLikelihoodVerifier(
        tokenizer=policy()[1], scorer=Small(), alpha=ALPHA, profile=profile()
    )
    assert [v.cause for v in judge.verify(batch)] == [
        Cause.JUDGED,
        Cause.OUT_OF_MEMORY,
        Cause.JUDGED,
    ]


def test_profile_round_trips_and_refuses_another_reference(tmp_path: Path):
    path = tmp_path / "profile.json"
    profile().write(path)
    assert read_profile(path) == profile()
    other = profile().model_copy(update={"identity": {"architecture": "other"}})
    with pytest.raises(ValueError, match="architecture"):
        verifier(profile=other)
    with pytest.raises(ValueError, match="architecture"):  # the built-in one is SmolLM2's
        ReferenceLikelihoodVerifier(tokenizer=policy()[1], scorer=scorer())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "format"),
        ({"scores": [2.0, 1.0]}, "ascending"),
        ({"scores": []}, "scores"),
        ({"rate": 0}, "rate"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_damaged_profile_error_names_the_field(tmp_path, change, problem):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**json.loads(profile().model_dump_json()), **change}))
    with pytest.raises(ValueError, match=problem) as raised:
        read_profile(path)
    assert str(path) in str(raised.value)


def test_missing_and_huge_profiles_are_refused(tmp_path):
    with pytest.raises(ValueError, match="readable"):
        read_profile(tmp_path / "none.json")
    huge = tmp_path / "huge.json"
    huge.write_bytes(b" " * (2**20 + 1))
    with pytest.raises(ValueError, match="at most"):
        read_profile(huge)


def test_too_few_honest_completions_are_refused():
    reader = Reader(policy()[1], scorer())
    with pytest.raises(ValueError, match="20"):
        calibrated(reader, as_text(honest(8))[:5], name="few", method="")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"alpha": 0}, ValueError),
        ({"tail": "normal"}, ValueError),
        ({"model": object()}, ValueError),
        ({"tokenizer": None}, TypeError),
        ({"memory_budget": 2**20}, ValueError),
    ],
)
def test_invalid_options_are_refused(options, error):
    given = {"tokenizer": policy()[1], "scorer": scorer(), "profile": profile(), **options}
    with pytest.raises(error):
        ReferenceLikelihoodVerifier(**given)


def test_built_in_profile_can_be_read():
    built_in = read_profile("smollm2-gsm8k")
    assert isinstance(built_in, ReferenceProfile)
    assert len(built_in.scores) >= 200
