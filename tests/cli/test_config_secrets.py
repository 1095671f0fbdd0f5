"""Secrets in a guard file never appear in messages, however broken the file is."""

import base64
import html
import json
import urllib.parse

import pytest
from typer.testing import CliRunner

from grpo_guard import Completion
from grpo_guard.cli.main import app
from grpo_guard.config import ConfigError, GuardConfig, build_verifier
from grpo_guard.core.redaction import hidden, secrets_in
from grpo_guard.judge.backends.base import build_backend

KEY = "sk-live-Abc123-0123456789XYZ"
URL = "http://127.0.0.1:9/v1"
JUDGE = f"verifier: {{type: judge, backend: {{type: openai, model: m, base_url: '{URL}', KEY}}}}"

BROKEN = {
    "tab": f"verifier:\n  type: judge\n\tbackend: {{api_key: {KEY}}}\n",
    "tab before the key": f"verifier:\n  backend:\n    type: openai\n\tapi_key: {KEY}\n",
    "open quote": f'policy: {{on_abstain: "skip}}\nverifier: {{backend: {{api_key: {KEY}}}}}\n',
    "quote that closes late": f'policy: {{on_abstain: "skip\napi_key: {KEY}"}}\nverifier: {{a: 1}}',
    "swallowed by a rubric": f'verifier: {{type: judge, rubric: "math\n api_key: {KEY}"}}',
    "swallowed by a mode": f'verifier: {{type: judge, mode: "logit, api_key: {KEY}"}}',
    "swallowed by a type": f'verifier: {{type: "judge, api_key: {KEY}"}}',
    "swallowed by a backend": f'verifier: {{type: judge, backend: "openai, api_key: {KEY}"}}',
    "at the top": f"api_key: {KEY}\nverifier: {{type: screens}}",
    "in the policy": f"policy: {{api_key: {KEY}}}\nverifier: {{type: screens}}",
    "as a policy": f"policy: {{on_abstain: {KEY}}}\nverifier: {{type: screens}}",
    "as a number": f"alpha: {KEY}\nverifier: {{type: screens}}",
    "as a mapping": f"policy: {{on_abstain: {{api_key: {KEY}}}}}\nverifier: {{type: screens}}",
    "as a list": f"verifier: [{{type: judge, backend: {{api_key: {KEY}}}}}]",
    "as an empty list": f"verifier: {{all: {{type: judge, api_key: {KEY}}}}}",
    "beside a combinator": f"verifier: {{all: [{{type: screens}}], {KEY}: 1}}",
    "instead of a type": f"verifier: {{typ: judge, api_key:{KEY}}}",
    "in the verifier": f"verifier: {{type: judge, api_key: {KEY}}}",
    "in the screens": f"verifier: {{type: screens, api_key: {KEY}}}",
    "without a space": JUDGE.replace("KEY", f"api_key:{KEY}"),
    "as a name": JUDGE.replace("KEY", f"{KEY}: 1"),
    "with a line break": JUDGE.replace("KEY", f'api_key: "{KEY[:14]}\\n{KEY[14:]}"'),
    "as a name without a dash": f"{KEY.replace('-', '_')}: 1\nverifier: {{type: screens}}",
    "as a list of keys": JUDGE.replace("KEY", f"api_key: [{KEY}]"),
    "unknown backend": f"verifier: {{type: judge, backend: {{type: {KEY}, api_key: {KEY}}}}}",
    "in the sampling": f"verifier: {{type: seed_replay, model: m, sampling: {{token: {KEY}}}}}",
    "undefined alias": f"verifier: {{type: judge, api_key: *{KEY}}}",
    "twice an anchor": f"verifier: [&{KEY} a, &{KEY} b, *{KEY}]",
    "a tag": f"verifier: !{KEY} a",
    "a tag of another kind": f"verifier: !!{KEY} a",
    "an escape": f'verifier: {{api_key: "\\q{KEY}"}}',
    "a date": f"alpha: 2001-99-99\nverifier: {{api_key: {KEY}}}",
    "a huge number": f"alpha: {'9' * 5000}\nverifier: {{api_key: {KEY}}}",
    "a huge hexadecimal": f"alpha: 0x{'f' * 5000}\nverifier: {{api_key: {KEY}}}",
    "a control character": f"verifier: {{api_key: {KEY}\x01}}",
    "deep": "verifier: " + "[" * 3000 + KEY,
    "as a number of seconds": f"verifier: {{type: judge, limits: {{deadline: {KEY}}}}}",
    "as a choice": f"verifier: {{type: judge, on_unsure: [{KEY}]}}",
    "as a model": JUDGE.replace("m,", f"{KEY},"),
    "as a variable": JUDGE.replace("KEY", f"api_key_env: {KEY}"),
    "as a file": f"verifier: {{type: screens, calibration: {KEY}}}",
    "as shares": f"verifier: {{all: [{{type: screens}}], shares: {KEY}}}",
    "address": f"verifier: {{type: judge, backend: {{type: openai, base_url: 'http://u:{KEY}@[h'}}}}",
    "address elsewhere": f"verifier: {{type: judge, rubric: 'http://h/?k={KEY}'}}",
}


def parts(text):
    text = text.replace("_", "-")
    return [KEY[i : i + 8] for i in range(len(KEY) - 7) if KEY[i : i + 8] in text]


@pytest.mark.slow
@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_error_does_not_show_its_key(tmp_path, case):
    path, rows = tmp_path / "guard.yaml", tmp_path / "in.jsonl"
    path.write_text(BROKEN[case])
    rows.write_text(json.dumps({"prompt": "p", "text": "t"}) + "\n")
    arguments = ["verify", "-c", str(path), str(rows), "-o", str(tmp_path / "out.jsonl")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.strip()
    assert not parts(result.output + result.stderr)


def test_invalid_backend_error_does_not_show_its_key():
    for wrong in ({"type": "openai", "model": "m", f"api_key:{KEY}": None}, {"api_key": KEY}):
        with pytest.raises(ValueError, match="backend") as refused:
            build_backend(wrong)
        assert not parts(str(refused.value))


def test_values_that_cannot_be_keys_are_shown(tmp_path):
    path = tmp_path / "guard.yaml"
    for text, said in {
        "alpha: 7\nverifier: {type: screens}": "got 7",
        "policy: {on_abstain: skp}\nverifier: {type: screens}": "'raise', got 'skp'",
        "policy: {max_abstain_rate: [1]}\nverifier: {type: screens}": "got a list",
        "verifier: {type: screens}\nx: 1": "guard.yaml: expected one of alpha, policy, preset, "
        "state, environment, verifier, ledger, identity, references, tokenizer, log, workers, "
        "got 'x'",
        "verifier: [1]": "got a list",
        "verifier: {type: scrns}": "got 'scrns'; did you mean 'screens'",
        "verifier:\n\t- x": "line 2, column 1",
    }.items():
        path.write_text(text)
        with pytest.raises(ConfigError) as refused:
            GuardConfig.from_yaml(path).build()
        assert said in str(refused.value)


@pytest.mark.parametrize("rules", [[], ["--rules"]])
def test_calibrate_with_a_broken_file_shows_no_key(tmp_path, rules):
    path, rows = tmp_path / "guard.yaml", tmp_path / "in.jsonl"
    path.write_text(BROKEN["swallowed by a type"])
    rows.write_text(json.dumps({"prompt": "p", "text": "t"}) + "\n")
    out = str(tmp_path / "out.json")
    result = CliRunner().invoke(app, ["calibrate", "-c", str(path), str(rows), "-o", out, *rules])
    assert result.exit_code == 2, result.output
    assert not parts(result.output + result.stderr)


@pytest.mark.parametrize("form", ["sk_live_0123456789abcdef", "hf_abcdefghijklmn", "0f" * 16])
def test_key_in_place_of_its_variable_name_is_hidden(monkeypatch, form):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (verdict,) = build_verifier(
        {"type": "judge", "backend": {"type": "openai", "model": "m", "api_key_env": form}}, 1e-3
    ).verify([Completion("p", "t")])
    assert verdict.abstained
    assert "$***" in verdict.findings[0].message


CHARACTERS = {
    "UTF-16": KEY.encode("utf-16le").decode("latin-1"),
    "invisible characters": "\u200b".join(KEY),
    "control characters": "\x00".join((KEY[:7], KEY[7:14], KEY[14:21], KEY[21:])),
    "a list": json.dumps(list(KEY)),
    "a dump": ":".join(f"{ord(c):02x}" for c in KEY),
    "folded and quoted": f"{KEY[:7]}'\r\n '{KEY[7:14]}' + '{KEY[14:21]}',\n'{KEY[21:]}",
    "backwards": KEY[::-1],
    "full width": "".join(chr(ord(c) + 0xFEE0) for c in KEY),
    "octal": "".join(f"\\{ord(c):03o}" for c in KEY),
    "quoted printable": "".join(f"={ord(c):02X}" for c in KEY),
    "percent twice": "".join(f"%25{ord(c):02x}" for c in KEY),
    "percent of JSON": urllib.parse.quote("".join(rf"\u{ord(c):04x}" for c in KEY), safe=""),
    "entities of entities": html.escape("".join(f"&#{ord(c)};" for c in KEY)),
}


@pytest.mark.parametrize("form", CHARACTERS)
def test_message_with_a_disguised_key_is_withheld(form):
    assert hidden(f"bad key {CHARACTERS[form]}!", [KEY]) == "(a message that quotes a secret)"


@pytest.mark.parametrize("login", ["user:p%40ss%23w0rd-long", "u:pass5", ":tok%2Fen-12345"])
def test_url_credentials_are_hidden_in_header_form_too(login):
    sent = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
    said = hidden(f"got Basic {sent}", secrets_in({"base_url": f"http://{login}@h/v1"}))
    assert len(said.removeprefix("got Basic ").replace("***", "").rstrip("=")) < 4


def test_recursive_tree_terminates():
    tree = {"type": "judge", "api_key": KEY}
    tree["inner"] = [tree]
    assert secrets_in(tree) == {KEY}
    with pytest.raises(ConfigError) as refused:
        build_verifier(tree, 1e-3)
    assert not parts(str(refused.value))


def test_text_without_secrets_is_unchanged():
    assert hidden("a key of none", ["no", "", "key"]) == "a key of none"
    assert hidden("maximum context length is 4096", [KEY]) == "maximum context length is 4096"
    assert secrets_in({"max_tokens": 5, "api_key_env": "MY_KEY", "model": "a/b"}) == set()


def test_repr_of_a_configuration_shows_no_key():
    backend = {"type": "openai", "api_key": KEY, "model": "m"}
    for data in (
        {"verifier": {"type": "judge", "backend": backend}},
        {"preset": "judged", "backend": backend},
    ):
        config = GuardConfig.read(data, "")
        assert KEY not in f"{config!r} {config}"
