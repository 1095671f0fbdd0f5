"""Verifiers judge what is trained: the text is decoded from the ids, or the ids are refused."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import AllOf, AnyOf, Completion, CompletionVerifier, Guard, Policy, guard, presets
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.detokenizer import Detokenizer, UnreadableError
from grpo_guard.core.ensemble import only
from grpo_guard.core.given import Given
from grpo_guard.core.verdict import Cause, accept
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.guard.spot_checks import SpotCheck
from tests.helpers.characters import CALL, END, PAD, Characters


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer tests set this for the whole process; names of models would be refused then."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


TOK = Characters()
POISONED = Completion(
    "7 - 5?", "7 - 5 = 2", completion_ids=[*TOK.encode("7 - 5 = 3"), END], node="n"
)


class Reads(CompletionVerifier):
    name = "reads"

    def __init__(self):
        self.read = []

    def verify(self, batch):
        self.read += batch
        return [accept(self.name) for _ in batch]


class Compares(Reads):
    """A stand-in for a log-prob verifier, which compares ids with the text itself."""

    name = "compares"
    compares_ids = True
    own_tokenizer = TOK


def verdict_of(the_guard, completion):
    return the_guard.review([completion]).verdicts[0]


@pytest.mark.parametrize(
    "made",
    [
        lambda **more: Guard(ArithmeticVerifier(), **more),
        lambda **more: presets.different_weights(**more),
        lambda **more: presets.different_weights(beside=[Reads()], **more),
    ],
)
def test_clean_text_over_poisoned_ids_is_rejected(made):
    found = verdict_of(made(tokenizer=TOK), POISONED)
    assert (found.rejected, found.cause) == (True, Cause.JUDGED)
    assert any(f.kind == "wrong_equation" for f in found.findings)
    refused = verdict_of(made(), POISONED)
    assert (refused.rejected, refused.cause) == (True, Cause.MALFORMED)
    assert "tokenizer" in refused.reason
    honest = replace(POISONED, completion_ids=TOK.encode("7 - 5 = 2"))
    # With only one node, verifiers that compare nodes abstain.
    assert not verdict_of(made(tokenizer=TOK), honest).rejected
    assert not verdict_of(made(), replace(honest, completion_ids=None)).rejected


def test_sender_text_is_not_used():
    """Nor is it compared: engines render texts in their own ways."""
    verifier = Reads()
    found = verdict_of(Guard(verifier, tokenizer=TOK), replace(POISONED, text="anything"))
    assert found.accepted
    assert [one.text for one in verifier.read] == ["7 - 5 = 3"]


def test_decorator_takes_a_tokenizer():
    verifier = Reads()

    @guard(verifier, policy=Policy("zero", "zero"), tokenizer=TOK)
    def reward(prompts, completions, **columns):
        return [1.0] * len(completions)

    ids = [list(POISONED.completion_ids)]
    assert reward(prompts=["q"], completions=["clean"], completion_ids=ids, node=["n"]) == [1.0]
    assert verifier.read[0].text == "7 - 5 = 3"


@pytest.mark.parametrize(
    ("verifier", "reads"),
    [
        (Compares(), True),
        (AllOf(Reads(), Compares()), True),
        (Reads() & Compares(), True),
        (~Compares(), True),
        (AnyOf(Compares(), Compares()), True),
        (AnyOf(Reads(), Compares()), False),
        (only(Compares(), task="maths") & Reads(), False),
        (SpotCheck(Compares(), share=0.1) & Reads(), False),
        (Reads(), False),
        (AllOf(Reads()), False),
    ],
)
def test_guard_decodes_ids_unless_a_member_compares_them_all(verifier, reads):
    """It reads with a member's tokenizer, or not at all."""
    assert verifier.compares_ids is reads
    the_guard = Guard(verifier)
    has = verifier.own_tokenizer is not None
    assert the_guard.reads_ids is (reads or has)
    assert (the_guard.detokenizer is not None) is (has and not reads)


def test_verifier_that_reads_no_text_needs_no_tokenizer():
    assert Guard(presets.failures_only().verifier).reads_ids
    assert verdict_of(presets.failures_only(), POISONED).accepted


def test_remedy_is_logged_once(caplog):
    from grpo_guard.guard.admission import _log_unread

    _log_unread.cache_clear()
    the_guard = Guard(Reads())
    for _ in range(3):
        the_guard.review([POISONED] * 2)
    assert [r.getMessage() for r in caplog.records if "tokenizer" in r.getMessage()] == [
        caplog.records[0].getMessage()
    ]


def test_guard_file_names_the_tokenizer(tmp_path):
    load_bundled()[1].save_pretrained(tmp_path / "policy")
    tree = f"tokenizer: {tmp_path / 'policy'}\nverifier: {{type: arithmetic}}\n"
    preset = f"tokenizer: {tmp_path / 'policy'}\npreset: different_weights\n"
    tokenizer = load_bundled()[1]
    ids = [*tokenizer.encode("7 - 5 = 3"), tokenizer.eos_token_id]
    for text in (tree, preset):
        built = GuardConfig.from_text(text, "guard.yaml").build()
        found = verdict_of(built, replace(POISONED, completion_ids=ids))
        assert any(f.kind == "wrong_equation" for f in found.findings)
    none = f"tokenizer: {tmp_path}\npreset: judged\nbackend: shipped\n"
    with pytest.raises(ConfigError, match="tokenizer: expected a tokenizer's folder or id"):
        GuardConfig.from_text(none, "g").build()
    sampler = "{engine: vllm, temperature: 1, top_k: 0, top_p: 1}"
    same = f"preset: same_weights\nmodel: org/x\ntokenizer: org/y\nsampling: {sampler}\n"
    with pytest.raises(ConfigError, match="tokenizer: expected none with a preset"):
        GuardConfig.from_text(same, "g").build()


@pytest.fixture(scope="module")
def folder():
    from grpo_guard.evals.policies.bundled import WORD_PROBLEMS

    return str(WORD_PROBLEMS)


@pytest.mark.parametrize("live", [False, True])
def test_reader_that_is_the_policy_decodes_ids(folder, live):
    from grpo_guard.logprob.scorers.load import load_policy

    model, tokenizer = load_policy(folder)
    made = presets.different_weights(*((model, tokenizer) if live else (folder,)))
    ids = [*tokenizer.encode("7 - 5 = 3"), tokenizer.eos_token_id]
    found = verdict_of(made, replace(POISONED, completion_ids=ids))
    assert any(f.kind == "wrong_equation" for f in found.findings)


def test_detokenizer_of_the_policy_serves_its_model_too(folder):
    from grpo_guard.logprob.scorers.load import load_policy

    model, tokenizer = load_policy(folder)
    reading = Detokenizer(tokenizer, special=[tokenizer.eos_token_id])
    made = presets.different_weights(model, reading)
    assert made.detokenizer is reading
    assert made.verifier.reader.tokenizer is tokenizer


def test_reader_that_may_not_be_the_policy_decodes_no_ids(folder):
    """Its vocabulary may differ, so its decoded text may not be what is trained."""
    made = presets.different_weights(reader=folder)
    refused = verdict_of(made, POISONED)
    assert (refused.rejected, refused.cause) == (True, Cause.MALFORMED)
    for made in (
        presets.different_weights(reader=folder, tokenizer=TOK),
        presets.different_weights(folder, TOK),
    ):
        assert made.detokenizer.tokenizer is TOK
        found = verdict_of(made, POISONED)
        assert any(f.kind == "wrong_equation" for f in found.findings)


def test_guard_file_names_a_reader_and_the_tokenizer(folder, tmp_path):
    load_bundled()[1].save_pretrained(tmp_path / "policy")
    file = f"preset: different_weights\nreader: {folder}\n"
    assert GuardConfig.from_text(file, "g").build().detokenizer is None
    built = GuardConfig.from_text(f"{file}tokenizer: {tmp_path / 'policy'}\n", "g").build()
    tokenizer = built.detokenizer.tokenizer
    assert tokenizer.name_or_path == str(tmp_path / "policy")
    assert built.verifier.reader.tokenizer is not tokenizer
    own = GuardConfig.from_text(f"preset: different_weights\nmodel: {folder}\n", "g").build()
    assert own.detokenizer.tokenizer is own.verifier.reader.tokenizer


hostile = st.lists(st.sampled_from([*TOK.encode("ab= "), END, PAD, CALL, 0x110003]), max_size=10)


@settings(deadline=None)
@given(ids=hostile)
def test_all_ids_are_read_except_one_closing_token(ids):
    completion = Completion("q", "clean", completion_ids=ids)
    own = ids[:-1] if ids[-1:] == [END] else ids
    try:
        read = Detokenizer(TOK).read(completion)
    except UnreadableError:
        assert any(token > 0x10FFFF for token in own)
    else:
        assert TOK.encode(read.text) == own


@settings(deadline=None)
@given(ids=hostile)
def test_allowed_special_tokens_are_shown(ids):
    completion = Completion("q", "clean", completion_ids=ids)
    try:
        read = Detokenizer(TOK, special=[CALL]).read(completion)
    except UnreadableError:
        return
    assert read.text.count("<call>") == ids.count(CALL)
    assert not {PAD, 0x110003} & set(ids)


def test_claimed_span_is_ignored_unless_reproduced():
    ids = [*TOK.encode("a"), END, CALL, *TOK.encode("b"), END]
    claim = Given(((2, 3),), ((0, 0),))
    completion = Completion("q", "", completion_ids=ids, given=claim)
    reads = Detokenizer(TOK)
    with pytest.raises(UnreadableError, match="continues after its end at position 1"):
        reads.read(completion)
    asked = reads.read(completion, claims=True)
    assert (asked.text, asked.given.chars) == ("a<call>b", ((1, 7),))
    masked = reads.read(replace(completion, given=replace(claim, masked=True)))
    assert masked.text == "a<call>b"
    known = reads.read(replace(completion, given=replace(claim, masked=True, known=True)))
    assert (known.text, known.given.chars) == ("ab", ((1, 1),))
