"""A sequence classifier as a rule, trained here in seconds."""

import pickle

import pytest

pytest.importorskip("transformers")

from grpo_guard import Completion
from grpo_guard.config import ConfigError, build_verifier
from grpo_guard.content.extras.toxicity import ToxicityVerifier
from grpo_guard.core.supervise import supervised
from grpo_guard.core.testing import check_verifier
from tests.extras.tiny_classifier import save

GOOD, BAD = "i like cats and dogs .", "i hate cats and dogs ."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("classifier"))


def make(model, **options):
    return ToxicityVerifier(model, labels=["toxic"], threshold=0.8, **options)


def judged(verifier, *texts):
    return verifier.verify([Completion("?", text) for text in texts])


def test_rejects_by_label_with_a_span(model):
    good, bad, empty = judged(make(model), GOOD, BAD, "")
    assert good.accepted
    assert empty.accepted
    assert bad.rejected
    (finding,) = bad.findings
    assert finding.kind == "toxic"
    assert finding.message.startswith("is classified as toxic with probability ")
    assert finding.char_span == (0, len(BAD))
    # With the other label, the opposite is rejected.
    other = ToxicityVerifier(model, labels=["neutral"], threshold=0.8)
    assert [v.outcome for v in judged(other, GOOD, BAD)] == ["reject", "accept"]


def test_word_far_inside_a_text_is_found(model):
    text = "the sum is seven . " * 60 + BAD + " yes " * 200
    (verdict,) = judged(make(model, batch_size=3), text)
    assert verdict.rejected
    for start, end in (f.char_span for f in verdict.findings):
        assert "hate" in text[start:end]
        assert end - start < 600
    assert judged(make(model), text.replace("hate", "like"))[0].accepted


def test_verdicts_do_not_depend_on_the_batch(model):
    texts = [GOOD, BAD, "we like " * 90, "all of you hate " * 40, "no"]
    one = make(model, batch_size=2)
    together = [v.outcome for v in judged(one, *texts)]
    assert together == [judged(make(model), text)[0].outcome for text in texts]
    assert together == ["accept", "reject", "accept", "reject", "accept"]


def test_threat_author_writes_special_tokens(model):
    one = make(model)
    loaded = one.loaded()
    special = set(loaded.tokenizer.all_special_ids) - {loaded.tokenizer.unk_token_id}
    for _, _, ids in loaded._pieces(0, "[SEP] [PAD] [CLS] " + BAD):
        assert not special & set(ids)
    assert judged(one, "[SEP] " + BAD)[0].rejected


@pytest.mark.slow
def test_classifier_keeps_the_contract(model):
    examples = [(Completion("?", GOOD), "accept"), (Completion("?", BAD), "reject")]
    gone = ToxicityVerifier("./no-such-folder", labels=["toxic"])
    check_verifier(lambda: make(model), examples, make_broken=lambda: gone)


def test_classifier_can_be_pickled_and_configured_in_a_file(model):
    one = make(model)
    one.check()
    assert judged(pickle.loads(pickle.dumps(one)), BAD)[0].rejected
    built = build_verifier({"type": "toxicity", "model": model, "labels": ["toxic"]}, 1e-3)
    assert built.name == "toxicity"


def test_nan_scores_abstain(model):
    one = make(model)
    one.loaded().model.classifier.bias.data.fill_(float("nan"))
    (verdict,) = supervised(one, [Completion("?", GOOD)])
    assert (verdict.outcome, verdict.cause) == ("abstain", "fault")


def test_invalid_options_are_named(model):
    with pytest.raises(ValueError, match="did you mean 'toxic'"):
        ToxicityVerifier(model, labels=["toxik"]).check()
    with pytest.raises(ValueError, match="expected a model's folder or an id"):
        ToxicityVerifier("./no-such-folder", labels=["toxic"]).check()
    with pytest.raises(ValueError, match="labels: expected a list"):
        ToxicityVerifier(model, labels="toxic")
    with pytest.raises(ValueError, match="threshold in"):
        ToxicityVerifier(model, labels=["toxic"], threshold=0)
    with pytest.raises(ConfigError, match="labels"):
        build_verifier({"type": "toxicity", "model": model}, 1e-3)
