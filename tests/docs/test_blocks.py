"""Code blocks of README and docs/ against the code: imports, calls, configuration, commands.

Pages with tests of their own (such as the trainers', in their own environments) run in full there;
here every block of every page is checked for names, options and commands that exist.
"""

import ast
import importlib
import inspect
import re
import shlex
from functools import cache
from itertools import pairwise
from pkgutil import resolve_name
from urllib.parse import urlsplit

import pytest
import yaml
from typer.main import get_command

from grpo_guard import (
    AllOf,
    AnyOf,
    Cascade,
    Completion,
    CompletionVerifier,
    ScreensVerifier,
    presets,
)
from grpo_guard.cli.main import app
from grpo_guard.config import WRAPPERS, ConfigError, GuardConfig, verifier_options
from grpo_guard.config.preset_options import preset_options
from grpo_guard.core.ensemble import Vote
from grpo_guard.core.options import options_of
from grpo_guard.core.registry import VERIFIERS, load
from grpo_guard.core.verdict import accept
from grpo_guard.evals.attacks.registry import attack_names
from grpo_guard.evals.defences.early import defences
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.server.distributed import RayVerifier
from tests.docs.doc_pages import ROOT, all_blocks, commands
from tests.helpers.characters import Characters

CONSOLE = [(b, c) for b in all_blocks("console", "bash", "sh") for c in commands(b)]
COMBINATORS = {
    "all": AllOf,
    "any": AnyOf,
    "cascade": Cascade,
    "vote": Vote,
    "spot_checks": SpotCheck,
    "ray": RayVerifier,
}
NOT_OF_PRESETS = ("preset", "policy", "identity", "references", "tokenizer", "log", "workers")
OWN = re.compile(r"grpo_guard\b")


def named(blocks):
    return pytest.mark.parametrize("block", blocks, ids=str)


def imported(tree, seen):
    """Names that a block imports from the package, including the page's earlier blocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and OWN.match(node.module or ""):
            module = importlib.import_module(node.module)
            for alias in node.names:
                try:
                    seen[alias.asname or alias.name] = getattr(module, alias.name)
                except ImportError:
                    pytest.skip(f"{node.module}.{alias.name} needs what is not installed")
    return seen


def calls(text, name="block"):
    """(call, whether it fits the signature) for each call of what a block imports from us."""
    tree = ast.parse(text, name)
    names, found = imported(tree, {}), []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        path = ast.unparse(call.func).split(".")
        if path[0] not in names or not all(part.isidentifier() for part in path):
            continue
        try:
            target = resolved(names[path[0]], path[1:])
            if not (inspect.isclass(target) and issubclass(target, Exception)):
                plain = [a for a in call.args if not isinstance(a, ast.Starred)]
                given = {k.arg: k for k in call.keywords if k.arg}
                inspect.signature(target).bind_partial(*plain, **given)
        except (AttributeError, TypeError):
            found.append((ast.unparse(call), False))
        else:
            found.append((ast.unparse(call), True))
    return found


def resolved(target, path):
    for part in path:
        target = getattr(target, part)
    return target


# A table row is not a program; the adapters' contract checks it against the table.
@named([b for b in all_blocks("python") if not b.text.startswith(" ")])
def test_python_blocks_call_existing_names(block):
    try:
        found = calls(block.text, str(block))
    except ModuleNotFoundError as error:
        if OWN.match(error.name or ""):
            raise
        pytest.skip(f"needs {error.name}")
    assert [call for call, fits in found if not fits] == []


def test_mistaken_calls_of_a_block_are_found():
    text = "from grpo_guard import Completion, presets\n"
    text += "presets.judged()\npresets.failures_only(timeuot=1)\npresets.none()\nCompletion(1, 2)"
    assert calls(text) == [
        ("presets.judged()", True),
        ("presets.failures_only(timeuot=1)", False),
        ("presets.none()", False),
        ("Completion(1, 2)", True),
    ]


@named([b for b in all_blocks("yaml") if b.file in (None, "guard.yaml")])
def test_yaml_blocks_are_valid_guard_files(block):
    text = block.text.replace("{...}", "{engine: vllm, temperature: 1.0, top_k: 0, top_p: 1.0}")
    assert checked(yaml.safe_load(text))


def test_mistaken_options_of_a_block_are_found():
    right = {"all": [{"type": "screens"}, {"ray": {"type": "code", "reach": True}}]}
    assert checked({"verifier": right}) == ["all", "screens", "ray", "code"]
    beside = {"preset": "different_weights", "beside": [{"type": "code", "raech": True}]}
    for wrong in ({"verifier": {"type": "code", "raech": True}}, beside, {"preset": "jugded"}):
        with pytest.raises(ConfigError, match="did you mean"):
            checked(wrong)


def checked(data):
    """The preset, combinators and verifiers of a block, whose options have been checked."""
    if isinstance(data, list):
        data = {"verifier": data[0]}
    config = GuardConfig.read(data, "")
    config.whole_policy()
    if config.preset is None:
        return list(leaves(config.verifier))
    rest = {k: v for k, v in config.explicit_values().items() if k not in NOT_OF_PRESETS}
    preset_options(config.preset).read(rest, config.preset)
    return [config.preset, *(name for node in data.get("beside", []) for name in leaves(node))]


def leaves(node):
    """Check each leaf's options against its verifier's, without loading what it names."""
    if "type" in node:
        said = {name: value for name, value in node.items() if name != "type"}
        if ":" not in node["type"]:
            verifier_options(load(VERIFIERS, node["type"])).read(said, node["type"])
        yield node["type"]
        return
    (kind,) = node.keys() & COMBINATORS.keys()
    options = {k: v for k, v in node.items() if k != kind}
    options_of(kind, COMBINATORS[kind]).read(options, kind)
    yield kind
    for inner in node[kind] if isinstance(node[kind], list) else [node[kind]]:
        yield from leaves(inner)


@pytest.mark.parametrize(("block", "command"), CONSOLE, ids=lambda part: str(part)[:60])
def test_commands_and_options_exist(block, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.jsonl", "HONEST.jsonl"):  # options that argparse validates immediately
        (tmp_path / name).touch()
    words = shlex.split(command, comments=True)
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    program, *arguments = words
    if program == "grpo-guard":
        parsed(command_line(), program, arguments)
        names_of(arguments)
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "python" and OWN.match(arguments[1]):
        assert importlib.util.find_spec(arguments[1]) is not None
    elif program == "python" and arguments[1] == "pytest":
        assert all((ROOT / path).exists() for path in arguments[2:])
    elif program == "pip":
        extras = re.findall(r"\[(.*?)\]", command)
        known = (ROOT / "pyproject.toml").read_text()
        assert all(f"\n{extra} = [" in known for each in extras for extra in each.split(","))
    elif program == "curl":
        pytest.importorskip("starlette")
        from tests.server.server_parts import client

        url, _, body = arguments
        assert client().post(urlsplit(url).path, content=body).status_code == 200
    else:
        assert program in ("cat", "pytest", "python"), command


@cache
def command_line():
    return get_command(app)


def parsed(command, name, arguments, parent=None):
    """Parse as the command line does; an unknown option raises."""
    context = command.make_context(name, list(arguments), parent=parent)
    if hasattr(command, "resolve_command"):
        left = [*context._protected_args, *context.args]
        name, inner, rest = command.resolve_command(context, left)
        parsed(inner, name, rest, context)


def names_of(arguments):
    """Attacks and defences are known, or the user's own."""
    known = {"--attack": attack_names, "--attacks": attack_names, "--defence": defences}
    for option, value in pairwise(arguments):
        if option in known:
            said = [name for name in value.split(",") if ":" not in name and name != "..."]
            assert set(said) <= set(known[option]()), value


class Says(CompletionVerifier):
    name = "says"

    def verify(self, batch):
        return [accept(self.name) for _ in batch]


# What the pages' fragments assume that a reader already has.
GIVEN = {
    "combination.md": {
        name: Says() for name in (
            "screens", "arithmetic", "bounds", "judge", "judge_a", "judge_b", "judge_c", "code",
            "replay", "tail")},
    "content-verifiers.md": {},
    "ledger.md": {"verifier": Says()},
    "other-trainers.md": {
        "verifier": ScreensVerifier(), "my_rm": lambda args, sample: 1.0, "MyEnv": object,
        "MyGroupBuilder": object, "RolloutWorkflow": object, "my_tokenizer": None,
        "tokenizer": Characters()},
    "recurrence.md": {"batch": [Completion("p", "t", node="ann"), Completion("q", "u", node="b")]},
}  # fmt: skip


@pytest.mark.parametrize("page", GIVEN)
def test_pages_run_unchanged(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = dict(GIVEN[page])
    ran = 0
    for block in all_blocks("python"):
        if block.page != f"docs/{page}" or needs_a_trainer(block.text):
            continue
        exec(compile(block.text, str(block), "exec"), names)  # noqa: S102
        ran += 1
    assert ran


def needs_a_trainer(text):
    return (
        re.search(r"\b(torch|vf|model|GRPOTrainer)\b\.?|\b(from|import) prime_rl", text) is not None
    )


def test_first_block_for_a_custom_loop_prints_what_the_page_says(capsys):
    first, *_ = [b for b in all_blocks("python") if b.page == "docs/plain-python.md"]
    exec(first.text, {})  # noqa: S102
    said = capsys.readouterr().out.strip()
    assert f"It prints `{said}`" in (ROOT / first.page).read_text(encoding="utf-8")


def graded(completions, **kwargs):
    return [1.0] * len(completions)


def test_presets_page_runs_unchanged(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from grpo_guard.evals.policies.bundled import load_bundled

    monkeypatch.chdir(tmp_path)
    model, tokenizer = load_bundled()
    names = {"model": model, "tokenizer": tokenizer, "my_verifier": Says(), "reward": graded}
    (block,) = [b for b in all_blocks("python") if b.page == "docs/presets.md"]
    exec(block.text, names)  # noqa: S102
    assert (tmp_path / "guard-state").is_dir()


def test_every_preset_and_wrapper_is_documented():
    pages = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    assert all(f"`{name}" in pages for name in presets.PRESETS)
    assert all(f"`{name}: " in pages for name in WRAPPERS)
    assert resolve_name("grpo_guard.core.testing:VerifierContract")
