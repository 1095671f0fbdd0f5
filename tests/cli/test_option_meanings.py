"""Mistakes in a line of input; and that messages name every option and say what it is."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from grpo_guard import Completion, CompletionVerifier, SamplingSpec, presets
from grpo_guard.cli.main import app
from grpo_guard.config.option_names import OPTIONS, PYTHON_ONLY
from grpo_guard.config.preset_options import preset_options
from grpo_guard.config.tree import verifier_options
from grpo_guard.core.arguments import meaning
from grpo_guard.core.options import Options
from grpo_guard.core.registry import VERIFIERS, load_class, names

LINES = {
    "another name for the text": ('{"prompt": "p", "completion": "t"}', "expected 'text' in its"),
    "no text": ('{"prompt": "p"}', "in.jsonl:1: text: expected to be present, got nothing"),
    "a number": ('{"prompt": "p", "text": 7}', "in.jsonl:1: text: expected a string, got 7"),
    "no JSON": ("prompt, text", r"in.jsonl:1: (line): expected a JSON object"),
    "a whole array": ('[{"prompt": "p", "text": "t"}]', "expected a JSON object, got list"),
}


@pytest.mark.parametrize("case", LINES)
def test_mistakes_in_an_input_line(case, tmp_path):
    line, said = LINES[case]
    (tmp_path / "guard.yaml").write_text("verifier: {type: screens}")
    (tmp_path / "in.jsonl").write_text(line + "\n")
    files = [str(tmp_path / name) for name in ("guard.yaml", "in.jsonl", "out.jsonl")]
    result = CliRunner().invoke(app, ["verify", "-c", files[0], files[1], "-o", files[2]])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_option_names_match_the_verifiers() -> None:
    for name, options in OPTIONS.items():
        model = verifier_options(load_class(VERIFIERS, name, CompletionVerifier))
        assert set(options) == set(model.model_fields)
        assert model.from_python <= set(PYTHON_ONLY)


def _required(model: type[Options]) -> Iterator[tuple[Any, str]]:
    """(maker, name) of each required option, those of nested mappings included."""
    pending: list[Any] = [model]
    while pending:
        kind = pending.pop()
        if isinstance(kind, type) and issubclass(kind, Options):
            pending += [field.annotation for field in kind.model_fields.values()]
            yield from ((kind.made, n) for n, f in kind.model_fields.items() if f.is_required())
        pending += get_args(kind)


def test_what_a_missing_value_is_stands_by_itself() -> None:
    """Messages quote the docstring, and "(as for `same_weights`)" explains nothing."""
    asked = {pair for name in presets.PRESETS for pair in _required(preset_options(name))}
    for name in names(VERIFIERS):
        asked |= set(_required(verifier_options(load_class(VERIFIERS, name, CompletionVerifier))))
    for maker in (*presets.PRESETS.values(), Completion, SamplingSpec):
        parameters = inspect.signature(maker).parameters.values()
        asked |= {(maker, p.name) for p in parameters if p.default is p.empty and p.kind.value < 4}
    assert len(asked) > 15
    for maker, parameter in asked:
        said = meaning(maker, parameter)
        assert said, (maker, parameter)
        assert not re.search("`|^As for|^Its |MAX_", said), (maker, parameter, said)
