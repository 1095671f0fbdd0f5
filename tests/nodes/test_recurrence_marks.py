"""Recurrence and marks: a tag of reasoning formats is no word, and any other name in one is."""

import time

import pytest

from grpo_guard.content.recurrence.words import END, spans_of, words_of
from tests.nodes.test_recurrence_habits import rejected


@pytest.mark.parametrize(
    "own",
    [
        "<scratch_pad> then </scratch_pad>",
        "<seed:think> then </seed:think>",
        "<|channel|>analysis<|message|> then <|end|><|start|>assistant<|channel|>final<|message|>",
        "<|begin_of_box|> then <|end_of_box|>",
        "<thinking-budget> then </thinking-budget>",
        "◁think▷ then ◁/think▷",
    ],
)
def test_marks_of_reasoning_formats_are_no_words(own: str) -> None:
    assert rejected(own) == 0


@pytest.mark.parametrize(
    "own",
    [
        "<hail_pad> then </hail_pad>",
        "<think_heron> then </think_heron>",
        "<seed:zorp> then </seed:zorp>",
        "<|heron|> then",
        "<scratch_pad heron> then </scratch_pad>",
        "scratch pad of seed",  # outside of a tag it is counted as before
        "<seed : pad> then",
    ],
)
def test_other_names_in_such_marks_are_found(own: str) -> None:
    assert rejected(own) >= 40


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<scratch_pad>So 4</scratch_pad>", "so"),
        ("a <seed:think>b</seed:think> c", "a b c"),
        ("a <think_heron> b", "a think heron b"),
        ("x < pad > y", "x pad y"),
        ("analysisWe need 4.assistantfinalThe answer", "we need . the answer"),
        ("analysis: we need", "analysis . we need"),
        ("Our analysisWe", "our analysiswe"),
        ("the assistantfinally said", "the assistantfinally said"),
        ("It is so.assistantcommentary to=calc", "it is so . to calc"),
        ("½ <scratch_pad> é", "é"),
    ],
)
def test_the_words_of_a_marked_text(text: str, words: str) -> None:
    assert words_of(text) == words.split()
    placed = list(spans_of(text))
    assert [word for word, _ in placed] == [word for word in words.split() if word != END]
    assert all(text[start:end].lower() == word for word, (start, end) in placed)


def test_what_skipped_special_tokens_leave_is_no_word() -> None:
    assert rejected("4.assistantfinalThe result") == 0
    assert rejected("4.assistantheronThe result") >= 40


@pytest.mark.parametrize("piece", ["<", "<a", "<think", "<think_", "<|", "assistantfinal", "</a:"])
def test_many_marks_take_linear_time(piece: str) -> None:
    start = time.process_time()
    words_of(piece * 200_000)
    assert time.process_time() - start < 4
