"""The negative controls match their names, and each is a valid completion object."""

import json
from pathlib import Path

import pytest

from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import InputError
from grpo_guard.evals.detect import controls
from grpo_guard.evals.studies.solutions import other_model
from tests.evals.tiny_eval_policy import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def completion(text: str) -> Completion:
    ids = (*TOKENIZER.encode(text, add_special_tokens=False), 1)
    return Completion("Q", text, completion_ids=ids, metadata={"question": 7})


HONEST = [completion("First line.\nSecond line.\nThird."), completion("One. Two. Three? Four!")]


def decodes(made: list[Completion]) -> bool:
    return all(
        TOKENIZER.decode(c.completion_ids, skip_special_tokens=True) == c.text
        for c in made
        if c.completion_ids is not None
    )


def test_random_tokens_keep_the_length() -> None:
    made = controls.random_tokens(HONEST, TOKENIZER, seed=0)
    assert [len(c.completion_ids or ()) for c in made] == [
        len(c.completion_ids or ()) for c in HONEST
    ]
    assert decodes(made)
    assert all(0 not in (c.completion_ids or ()) for c in made)
    assert made == controls.random_tokens(HONEST, TOKENIZER, seed=0)
    assert made != controls.random_tokens(HONEST, TOKENIZER, seed=1)


def test_exactly_one_token_is_swapped_but_never_the_last() -> None:
    for seed in range(30):
        made = controls.swapped_token(HONEST, TOKENIZER, seed=seed)
        assert decodes(made)
        for before, after in zip(HONEST, made, strict=True):
            pairs = zip(before.completion_ids or (), after.completion_ids or (), strict=True)
            assert [i for i, (a, b) in enumerate(pairs) if a != b] == [after.metadata["swapped"]]
            assert (after.completion_ids or ())[-1] == 1


def test_lines_or_sentences_are_shuffled() -> None:
    lines, sentences = controls.shuffled_lines(HONEST, TOKENIZER, seed=0)
    assert sorted(lines.text.split("\n")) == sorted(HONEST[0].text.split("\n"))
    assert sorted(sentences.text.split(" ")) == sorted(HONEST[1].text.split(" "))
    assert lines.text != HONEST[0].text
    assert sentences.text != HONEST[1].text
    assert decodes([lines, sentences])
    assert controls.shuffled_lines([completion("single")], TOKENIZER, seed=0) == []
    assert controls.shuffled_lines([completion("a\na\na")], TOKENIZER, seed=0) == []


def test_empty_and_huge_completions() -> None:
    assert [c.completion_ids for c in controls.empty(HONEST, TOKENIZER)] == [(), (1,)]
    ids, text = controls.huge(HONEST, TOKENIZER)
    assert len(ids.completion_ids or ()) == controls.HUGE_TOKENS
    assert 1 not in (ids.completion_ids or ())
    assert text.completion_ids is None
    assert text.text == ids.text
    assert controls.huge([], TOKENIZER) == []
    assert controls.huge([Completion("p", "", completion_ids=(1,))], TOKENIZER)[0].text == ""


def test_text_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "model_solutions.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": f"Q{i}", "completion": "x" * i}) + "\n" for i in range(1, 20)
        )
    )
    made = other_model(path, TOKENIZER, ask=lambda q: f"ask {q}", count=5, seed=0, min_tokens=10)
    assert len(made) == 5
    assert all(len(c.completion_ids or ()) >= 10 for c in made)
    assert all(c.prompt == f"ask Q{len(c.text)}" for c in made)
    path.write_text('{"question": "Q", "completion": "x"}\n{"question": "Q"}\n')
    with pytest.raises(InputError, match=r"model_solutions.jsonl:2: completion: expected a string"):
        other_model(path, TOKENIZER, ask=str, count=5, seed=0)


def test_bundled_text_is_about_as_long() -> None:
    honest = [completion("y" * 400), completion("y")]
    first, second = controls.bundled_text(honest, TOKENIZER, seed=0)
    assert 400 <= len(first.text) < 700
    assert second.text.startswith("<think>")
    assert decodes([first, second])
