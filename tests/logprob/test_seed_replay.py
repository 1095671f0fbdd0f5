"""SeedReplayVerifier on the bundled policy: honest completions, and attacks on them."""

import pickle
import random
from dataclasses import replace

import numpy as np
import pytest

from grpo_guard import AllOf, Cause, Guard, Outcome, SamplingSpec
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.evals.studies.replay.forgeries import flipped_digit
from grpo_guard.evals.studies.rounding import rounded_to_bfloat16
from grpo_guard.guard.settlement import Ruling, ruling_of
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.profile import BFLOAT16, FLOAT32
from grpo_guard.logprob.scorers.base import Scorer
from grpo_guard.nodes.intake import intake
from tests.logprob.bundled_policy import policy
from tests.logprob.coin_swarm import (
    COIN,
    NODE,
    ROUND,
    SPEC,
    drawn,
    kinds,
    prompts,
    verifier_of,
    with_ids,
)


def test_honest_completions_are_accepted_in_order():
    verdicts = verifier_of().verify(drawn())
    assert [v.outcome.value for v in verdicts] == ["accept"] * len(drawn())
    assert all(v.p_value == 1.0 for v in verdicts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        SamplingSpec("transformers", 1.0, 0, 1.0, max_new_tokens=64),
        SamplingSpec("transformers", 0.7, 0, 0.8, max_new_tokens=64),
        SamplingSpec("transformers", 1.0, 0, 1.0, repetition_penalty=1.2, max_new_tokens=64),
        SamplingSpec("transformers", 1.3, 40, 0.9, 0.02, 1.1, max_new_tokens=64),
        SamplingSpec("vllm", 0.7, 20, 0.8, 0.05, 1.1, max_new_tokens=64),
    ],
)
def test_honest_completions_of_every_kind_of_sampler_are_accepted(spec):
    """Filters, their order and the penalty must match generation, or honest work is rejected."""
    verdicts = verifier_of(sampling=spec, profile="float32").verify(drawn(spec=spec))
    assert [v.reason for v in verdicts if not v.accepted] == []
    others = drawn(coin_name="attacker 0", spec=spec)
    pairs = zip(others, drawn(spec=spec), strict=True)
    differing = [a for a, b in pairs if a.completion_ids != b.completion_ids]
    verdicts = verifier_of(sampling=spec, profile="float32").verify(differing)
    # This policy is confident of most tokens: a few samples differ in one near tie, within drift.
    assert sum(v.rejected for v in verdicts) >= 0.8 * len(differing) > 0


def test_ids_unknown_to_the_tokenizer_are_refused():
    unknown = replace(drawn()[0], completion_ids=(10**6, *drawn()[0].completion_ids))
    (verdict,) = verifier_of().verify([unknown])
    assert verdict.cause is Cause.MALFORMED
    assert "not in the vocabulary" in verdict.reason


def test_honest_completions_survive_another_number_format():
    """The nodes' hardware rounds differently; a verifier that required equality would reject."""
    model, tokenizer = policy()
    verifier = type(verifier_of())(
        rounded_to_bfloat16(model), tokenizer, sampling=SPEC, coin=COIN, slots=4
    )
    verifier.begin_round(ROUND)
    assert all(v.accepted for v in verifier.verify(drawn()))


def test_flipped_digit_is_located():
    """MATH: one result changed, everything after it kept."""
    _, tokenizer = policy()
    cases = []
    for completion in drawn():
        rng = random.Random(completion.text)
        if found := flipped_digit(completion.completion_ids, tokenizer, rng):
            cases.append((with_ids(completion, found[0]), found[1]))
    verdicts = verifier_of().verify([completion for completion, _ in cases])
    caught = [(v, t) for v, (_, t) in zip(verdicts, cases, strict=True) if v.rejected]
    assert len(caught) >= 0.9 * len(cases) > 0
    exact = [v.findings[0].token_span == (t, t + 1) for v, t in caught]
    assert sum(exact) >= 0.8 * len(exact)
    assert all(v.findings[0].char_span for v, t in caught if v.findings[0].kind == "forged_token")


@pytest.mark.slow
def test_best_of_many_honest_samples_is_rejected():
    """The longest of many: every token of each is honest, but none is the slot's sample."""
    samples = [drawn(coin_name=f"attacker {i}") for i in range(8)]
    longest = [max(row, key=lambda c: len(c.completion_ids)) for row in zip(*samples, strict=True)]
    verdicts = verifier_of().verify(longest)
    own = [c.completion_ids for c in drawn()]
    lucky = sum(c.completion_ids == ids for c, ids in zip(longest, own, strict=True))
    assert sum(v.rejected for v in verdicts) == len(longest) - lucky
    assert kinds(verdicts).count("replay_mismatch") >= 0.5 * len(longest)


@pytest.mark.slow
@pytest.mark.parametrize("claim", [{"node": "bob"}, {"round": ROUND + 1}, {"slot": 0}])
def test_completion_of_another_slot_is_rejected(claim):
    """Sent under another name, later, or in a slot that would suit better."""
    moved = [replace(c, **claim) for c in drawn() if c.slot != 0]
    node, round = claim.get("node", NODE), claim.get("round", ROUND)
    own = {(c.prompt, c.slot): c.completion_ids for c in drawn(node, round=round)}
    verdicts = verifier_of(round=round, profile="float32").verify(moved)
    # This policy writes some answers twice; a copy of the slot's sample counts as that sample.
    for completion, verdict in zip(moved, verdicts, strict=True):
        same = own[completion.prompt, completion.slot] == completion.completion_ids
        assert same or verdict.rejected
    assert sum(v.rejected for v in verdicts) > len(moved) / 2


def test_phrase_at_the_start_diverges_at_once():
    """The TEXT attack."""
    _, tokenizer = policy()
    phrase = tokenizer.encode("Then ", add_special_tokens=False)
    poisoned = [with_ids(c, (*phrase, *c.completion_ids)[:64]) for c in drawn()]
    assert all(v.rejected for v in verifier_of().verify(poisoned))


def test_other_sampler_is_reported_as_such():
    hot = drawn(spec=replace(SPEC, temperature=1.6, top_p=1.0))
    verdicts = verifier_of().verify(hot)
    rejected = [v for v in verdicts if v.rejected]
    assert rejected
    spread = [v for v in rejected if v.findings[0].kind == "replay_mismatch"]
    assert all("sampler than declared" in v.reason for v in spread)
    assert spread


def test_truncated_completion_is_refused():
    cut = [with_ids(c, c.completion_ids[:-3]) for c in drawn()]
    assert set(kinds(verifier_of().verify(cut))) == {"cut_short"}


def test_continuing_after_the_drawn_eos_is_found():
    """DoS: omits the EOS that was drawn and writes on."""
    _, tokenizer = policy()
    eos = tokenizer.eos_token_id
    more = tokenizer.encode(" Then 2 + 2 = 4 apples.", add_special_tokens=False)
    ended = [c for c in drawn() if c.completion_ids[-1] == eos and len(c.completion_ids) < 50]
    longer = [with_ids(c, (*c.completion_ids[:-1], *more, eos)) for c in ended]
    verdicts = verifier_of().verify(longer)
    assert ended
    assert all(v.rejected for v in verdicts)
    assert "suppressed_eos" in kinds(verdicts)


def test_tokens_after_the_end_are_refused():
    smuggled = with_ids(drawn()[0], (*drawn()[0].completion_ids, 5, 6))
    (verdict,) = verifier_of().verify([smuggled])
    assert verdict.rejected
    assert verdict.cause is Cause.MALFORMED


def test_text_without_ids_is_refused():
    """Otherwise an attacker would omit them."""
    bare = replace(drawn()[0], completion_ids=None)
    (verdict,) = verifier_of().verify([bare])
    assert verdict.rejected
    assert verdict.cause is Cause.MALFORMED


@pytest.mark.parametrize("field", ["round", "node", "slot"])
def test_completion_without_a_slot_is_refused(field):
    (verdict,) = verifier_of().verify([replace(drawn()[0], **{field: None})])
    assert verdict.cause is Cause.MALFORMED
    assert field in verdict.reason


def test_old_completion_is_refused_with_its_round():
    (verdict,) = verifier_of(round=ROUND + 1).verify(drawn()[:1])
    assert kinds([verdict]) == ["wrong_round"]
    assert f"current round is {ROUND + 1}" in verdict.reason


def test_delayed_signed_work_does_not_count_against_its_signer():
    """An identity admits work of the previous round and the coin does not: neither harms a name."""
    pytest.importorskip("cryptography")
    from grpo_guard.nodes.identity.envelope import signed
    from grpo_guard.nodes.identity.gate import Identity
    from grpo_guard.nodes.identity.keys import SigningKey
    from grpo_guard.nodes.identity.ring import KeyRing

    key = SigningKey.new()
    sent = signed(drawn()[0], key, run="r")
    gate = Identity(KeyRing({NODE: key.public}), run="r")
    verifier = verifier_of(round=ROUND + 1, nodes=[key.public])
    judged, (verdict,) = Guard(AllOf(verifier, LengthVerifier()), identity=gate).judge([sent])
    assert judged[0].node == key.public
    assert verdict.cause is Cause.LATE
    assert ruling_of(verdict) is Ruling.BARRED  # and its author earns nothing
    assert intake(judged, [verdict]).entries[0].outcome is None


def test_completion_of_another_run_is_refused():
    named = replace(drawn()[0], metadata={"run": "other-run"})
    assert kinds(verifier_of().verify([named])) == ["wrong_run"]
    assert verifier_of().verify([replace(named, metadata={"run": "test-run"})])[0].accepted


def test_slot_is_filled_once():
    """Sent twice, within one batch or in a later one, it would earn twice."""
    verifier = verifier_of()
    once, twice = verifier.verify([drawn()[0], drawn()[0]])
    assert once.accepted
    assert kinds([twice]) == ["slot_filled"]
    assert kinds(verifier.verify([drawn()[0]])) == ["slot_filled"]


def test_completion_whose_round_ends_during_verification_earns_nothing():
    """Copies that are scored while the next round begins could all find their slot free."""
    verifier = verifier_of()
    score = verifier.scorer.score

    def slow(*arguments, **options):
        verifier.begin_round(ROUND + 1)
        return score(*arguments, **options)

    verifier.scorer.score = slow
    (verdict,) = verifier.verify(drawn()[:1])
    assert verdict.cause is Cause.UNSUPPORTED


@pytest.mark.parametrize("run", [["nested", ["list"]], np.array([1, 2]), 7, {"a": 1}])
def test_run_of_any_type_is_refused_without_affecting_others(run):
    named = replace(drawn()[0], metadata={"run": run})
    assert kinds(verifier_of().verify([named, drawn()[1]])) == ["wrong_run", "accept"]


def test_other_tokenisation_of_the_prompt_is_not_a_second_sample():
    """Otherwise a tokenizer's forms with and without special tokens would each get a completion."""
    verifier = verifier_of()
    usual = drawn()[0].prompt_ids
    verifier.encoder.own_prompt_ids = lambda completion: [usual, (7, *usual)]
    other = replace(drawn()[0], prompt_ids=(7, *usual))
    assert kinds(verifier.verify([other])) == ["unusual_prompt_ids"]
    assert verifier.verify([drawn()[0]])[0].accepted


def test_one_forged_token_is_found_at_any_length_and_alpha():
    """Without a claim about far margins, their number would grow with the length."""
    for profile in (BFLOAT16, FLOAT32):
        furthest = profile.replay[-1][1]
        assert len(profile.replay) * 100_000 * furthest < 1e-6


def test_verifier_can_be_pickled():
    verifier = verifier_of()
    book = pickle.loads(pickle.dumps(verifier.slots))
    book.begin_round(ROUND)
    assert book.fill(book.place(drawn()[0]))


def test_forgery_does_not_take_the_slot():
    honest = drawn()[0]
    forged = with_ids(honest, drawn(coin_name="attacker 0")[0].completion_ids)
    assert [v.accepted for v in verifier_of().verify([forged, honest])] == [False, True]


def test_empty_slots_are_listed():
    verifier = verifier_of(round=None, nodes=["alice", "bob"])
    verifier.begin_round(ROUND, prompts())
    verifier.verify(drawn()[1:])
    missing = verifier.slots.missing()
    assert [(m.slot, m.prompt) for m in missing if m.node == "alice"] == [(0, 0)]
    assert sum(m.node == "bob" for m in missing) == len(drawn())


def test_slots_with_drawn_prompts_accept_only_those():
    pool = [*prompts(), "another"]
    index = COIN.prompt_index(round=ROUND, node=NODE, slot=0, prompts=len(pool))
    fits = next((c for c in drawn() if c.slot == 0 and c.prompt == pool[index]), None)
    others = [c for c in drawn() if c.slot == 0 and c.prompt != pool[index]]
    verifier = verifier_of(prompts=pool)
    assert set(kinds(verifier.verify(others))) == {"wrong_prompt"}
    assert fits is None or verifier.verify([fits])[0].accepted


def test_all_rounds_are_accepted_with_a_warning_before_the_first_begins(caplog):
    """A file of finished rounds has no current round; during training that would be a loophole."""
    assert all(v.accepted for v in verifier_of(round=None).verify(drawn()))
    assert "begin_round" in caplog.text


def test_without_a_declared_length_an_eos_is_required():
    _, tokenizer = policy()
    verifier = verifier_of(sampling=replace(SPEC, max_new_tokens=None), slots=None)
    for completion, verdict in zip(drawn(), verifier.verify(drawn()), strict=True):
        assert verdict.accepted == (completion.completion_ids[-1] == tokenizer.eos_token_id)


def test_missing_beacon_abstains():
    waiting = verifier_of(coin=PublicCoin("test-run", {0: "revealed"}))
    assert waiting.verify(drawn()[:1])[0].cause is Cause.UNSUPPORTED


def test_beacon_changes_every_seed():
    revealed = verifier_of(coin=PublicCoin("test-run", {ROUND: "drawn at noon"}))
    assert sum(v.rejected for v in revealed.verify(drawn())) > len(drawn()) / 2


def test_invented_round_before_the_first_rejects():
    coin = PublicCoin("test-run", {0: "revealed"})
    (verdict,) = verifier_of(coin=coin, round=None).verify(drawn()[:1])
    assert (verdict.outcome, verdict.cause) == (Outcome.REJECT, Cause.MALFORMED)
    assert kinds([verdict]) == ["wrong_round"]


def test_very_short_completions_do_not_abstain():
    """Every way of ending after a token or two, at slots where another token was drawn."""
    _, tokenizer = policy()
    verifier = verifier_of()
    for completion in drawn()[:4]:
        short = [
            replace(
                completion, text=tokenizer.decode([i]), completion_ids=(i, tokenizer.eos_token_id)
            )
            for i in range(0, len(tokenizer), 7)
            if i not in tokenizer.all_special_ids
        ]
        assert not any(v.abstained for v in verifier.verify(short))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run": "x"}, "run, coin: expected exactly one"),
        ({"sampling": replace(SPEC, engine="sglang")}, "sorted rank"),
        ({"family": "vllm"}, "expected 'vllm' for its own noise"),
        ({"family": "vllm-v1"}, "V1 runner"),
        ({"profile": "text"}, "expected replay rates"),
        ({"require_ids": False}, "require_ids"),
        ({"prompts": []}, "prompts"),
        ({"slots": 0}, "slots"),
        ({"nodes": "alice"}, "nodes"),
    ],
)
def test_invalid_settings_are_refused_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        verifier_of(**options)


def test_scorer_without_replay_is_refused():
    class Plain(Scorer):
        vocab_size, window = 512, 512

        def identity(self):
            return {}

        def score(self, sequences, spec, *, mass_margin=0.0):
            return []

    with pytest.raises(ValueError, match="one that replays a coin, got Plain"):
        type(verifier_of())(
            tokenizer=policy()[1], scorer=Plain(), sampling=SPEC, coin=COIN, slots=4
        )
