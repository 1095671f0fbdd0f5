"""Log-prob checks and seed replay on two turns, with the bundled policy and a calculator."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from grpo_guard import Completion, Guard, LogProbBoundVerifier, SamplingSpec, SeedReplayVerifier
from grpo_guard.core.given import Given
from grpo_guard.core.verdict import Cause
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.word_problems import generate
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.encode import EncodeError
from grpo_guard.logprob.reference.reading import Reader
from grpo_guard.logprob.replay.generate import generate_turns_under_coin
from grpo_guard.logprob.scorers.base import plain_stats
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.tail import TailProbabilityVerifier
from tests.helpers import calculator
from tests.helpers.calculator import marked, with_phrase

SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=96)
COIN = PublicCoin("turns")


@cache
def policy():
    return load_bundled()


@cache
def honest(forged=None):
    """Two-turn completions of slot 0 of several prompts, as a node sends them."""
    model, tokenizer = policy()
    prompts = [problem.prompt for problem in generate(3, 12)]
    seeds = [COIN.seed(round=0, node="ann", slot=0, prompt=prompt) for prompt in prompts]
    played = calculator.play(model, tokenizer, prompts, seeds, SPEC, forged=forged)
    return [replace(one, node="ann", round=0, slot=0) for one in played if one.given]


def known(completion):
    return replace(completion, given=replace(completion.given, known=True))


@pytest.mark.parametrize("kind", [LogProbBoundVerifier, TailProbabilityVerifier])
def test_tool_output_is_context_and_not_judged(kind):
    model, tokenizer = policy()
    verifier = kind(model, tokenizer, sampling=SPEC)
    odd = [known(one) for one in honest(" 9999")]  # the policy would not write that by itself
    assert all(v.accepted for v in verifier.verify([known(one) for one in honest()]))
    encoded = [verifier.encode(one) for one in odd]
    scored = verifier.score(encoded, verifier.profile)
    for one, stats in zip(encoded, scored, strict=True):
        assert stats.logprob[one.given[0][0] : one.given[0][1]].min() < -5
    assert [v.accepted for v in verifier.verify(odd)] == [True] * len(odd)
    claims = [replace(one, given=replace(one.given, known=False)) for one in odd]
    assert any(v.rejected for v in verifier.verify(claims))


def test_statistics_of_drawn_tokens_match_the_whole():
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC)
    encoded = verifier.encode(known(honest()[0]))
    (stats,) = verifier.score([encoded], verifier.profile)
    drawn = encoded.drawn()
    assert drawn.whole is encoded
    assert len(drawn.completion_ids) == len(encoded.completion_ids) - sum(
        end - start for start, end in encoded.given
    )
    ids = np.array(encoded.completion_ids)
    assert ids[drawn.places].tolist() == list(drawn.completion_ids)
    np.testing.assert_array_equal(stats.at(drawn.places).logprob, stats.logprob[drawn.places])
    assert drawn.span(0, len(drawn.completion_ids)) == (0, len(ids))


@pytest.mark.parametrize("turn", [0, 1])
def test_phrase_in_either_turn_is_located(turn):
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC, node_alpha=0)
    found = [with_phrase(tokenizer, one, turn) for one in honest()]
    poisoned = [known(one) for one in found if one is not None]
    assert len(poisoned) >= 6
    for completion, verdict in zip(poisoned, verifier.verify(poisoned), strict=True):
        assert verdict.rejected
        start, end = verdict.findings[0].char_span
        assert set(completion.text[start:end].split()) & {"hail", "thief.", "to", "All", "the"}
        first, last = verdict.findings[0].token_span
        text = tokenizer.decode(completion.completion_ids[first:last])
        assert text.strip() == completion.text[start:end].strip()


def test_spans_of_a_peer_hide_nothing():
    """With an environment they are forged; masked, the text after them is on-policy."""
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC, node_alpha=0)
    hidden = [marked(tokenizer, one) for one in honest()]
    assert all(v.rejected for v in verifier.verify(hidden))
    guard = Guard(verifier, environment=calculator.answer)
    for verdict in guard.judge([*hidden, *honest(" 9999")])[1]:
        assert [f.kind for f in verdict.findings] == ["forged_tool_result"]
    assert all(v.accepted for v in guard.judge(honest())[1])


def test_token_and_character_spans_must_agree():
    """Otherwise the poison's tokens would count as a tool's, and its characters as no one's."""
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC)
    one = honest()[0]
    ((start, end),) = one.given.tokens
    for tokens in ((start - 3, end), (start, end + 3), (0, end), (start + 5, end + 5)):
        lying = replace(one, given=Given((tokens,), one.given.chars, known=True))
        (verdict,) = verifier.verify([lying])
        assert (verdict.rejected, verdict.cause) == (True, Cause.MALFORMED)
    whole = Given(((0, len(one.completion_ids)),), ((0, len(one.text)),), known=True)
    (verdict,) = verifier.verify([replace(one, given=whole)])
    assert (verdict.rejected, verdict.cause) == (True, Cause.MALFORMED)


def test_text_without_ids_is_scored_per_turn():
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC)
    texts = [replace(known(one), completion_ids=None) for one in honest()]
    assert all(v.accepted for v in verifier.verify(texts))
    encoded = verifier.encode(texts[0])
    ((start, end),) = encoded.given
    text = tokenizer.decode(encoded.completion_ids[start:end])
    assert text.strip() == texts[0].text[slice(*texts[0].given.chars[0])].strip()


def replaying():
    model, tokenizer = policy()
    return SeedReplayVerifier(model, tokenizer, sampling=SPEC, coin=COIN)


def test_a_seed_is_replayed_through_all_turns():
    guard = Guard(replaying(), environment=calculator.answer)
    verdicts = guard.judge(honest())[1]
    assert [v.accepted for v in verdicts] == [True] * len(verdicts)
    assert not any(v.findings for v in verdicts)  # no token differs


def test_choosing_tool_output_allows_redrawing():
    forged = honest(" 7")
    for verdict in replaying().verify(forged):
        assert [f.kind for f in verdict.findings] == ["unknown_given"]
    guard = Guard(replaying(), environment=calculator.answer)
    assert sum(v.rejected for v in guard.judge(forged)[1]) >= len(forged) - 2  # some results are 7


def test_second_turn_drawn_with_another_seed_is_found():
    """The noise continues at the position in the whole completion, in the slot's own stream."""
    _, tokenizer = policy()
    other = {
        one.prompt: one
        for one in calculator.play(
            *policy(), [one.prompt for one in honest()], range(len(honest())), SPEC
        )
    }
    mixed = []
    for one in honest():
        theirs = other[one.prompt]
        if theirs.given is None:
            continue
        cut, tail = one.given.tokens[0][1], theirs.given.tokens[0][1]
        ids = (*one.completion_ids[:cut], *theirs.completion_ids[tail:])
        made = calculator.transcript(tokenizer, one.prompt, one.prompt_ids, ids, one.given.tokens)
        mixed.append(replace(known(made), node="ann", round=0, slot=0))
    verdicts = replaying().verify(mixed)
    assert sum(v.rejected for v in verdicts) >= len(mixed) - 2
    spans = [v.findings[0].token_span for v in verdicts if v.rejected]
    assert all(end <= len(c.completion_ids) for c, (_, end) in zip(mixed, spans, strict=False))


def test_answer_that_ends_with_tool_output_is_truncated():
    """An EOS in tool output is not the author's: the turn after it was withheld."""
    model, tokenizer = policy()
    one = honest()[0]
    eos = int(tokenizer.eos_token_id)
    ids = [tokenizer.encode(one.prompt, add_special_tokens=False)]
    seed = [COIN.seed(round=0, node="ann", slot=0, prompt=one.prompt)]

    def environment(row, text, start):
        return None if start else (one.given.tokens[0][0], [*tokenizer.encode(" 9"), eos])

    ((drawn, given),) = generate_turns_under_coin(
        model, ids, seed, SPEC, environment, eos_ids=[eos], most_answers=1
    )
    cut = calculator.transcript(tokenizer, one.prompt, ids[0], drawn[: given[0][1]], given)
    ours = replace(cut.given, known=True, masked=True)
    (verdict,) = replaying().verify([replace(cut, given=ours, node="ann", round=0, slot=0)])
    assert [f.kind for f in verdict.findings] == ["cut_short"]


def test_reference_model_treats_tool_output_as_context():
    model, tokenizer = policy()
    reader = Reader(tokenizer, TransformersScorer(model), max_new_tokens=40)
    page = f"{tokenizer.pad_token}{' 72' * 60}"
    text = f"70 + 2 ={page} so the answer is 72"
    given = Given(chars=((8, 8 + len(page)),), known=True)
    whole = Completion("How much is 70 + 2?", text, given=given)
    encoded = reader.encode(whole)
    assert len(encoded.completion_ids) > 100
    stats = plain_stats(reader.scorer, [encoded])[0]
    scores = np.full(len(stats), -1.0)
    scores[encoded.places[-6:]] = 1.0
    reading = reader.read(whole, encoded, stats, scores)
    assert reading.char_span is not None
    assert page not in text[slice(*reading.char_span)]
    assert text.endswith(text[slice(*reading.char_span)])
    for claimed in (replace(whole, given=replace(given, known=False)), replace(whole, given=None)):
        with pytest.raises(EncodeError):  # a claim exempts nothing
            reader.encode(claimed)
