"""Optional rules: what they find, what they leave alone, and the error if a library is missing."""

import base64
import importlib.util
import json
import pickle
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grpo_guard import Completion, Guard, Policy
from grpo_guard.cli.main import app
from grpo_guard.config import ConfigError, build_verifier
from grpo_guard.content.extras import rule
from grpo_guard.core.registry import VERIFIERS, load, names
from grpo_guard.core.testing import check_verifier

LIBRARIES = {"secrets": "detect_secrets", "pii": "presidio_analyzer", "language": "lingua"}
ASKED = "Ann has 3 pens and buys 4 more. How many pens does she have now?"
PLAIN = "Ann has 3 pens and buys 4 more, so she has 3 + 4 = 7 pens.\n#### 7"
TOKEN = "ghp_" + "a1B2" * 9
GERMAN = (
    "Ann hat zuerst drei Stifte und kauft dann noch vier weitere dazu. Um zu wissen, wie viele "
    "Stifte sie jetzt hat, zählen wir die beiden Zahlen zusammen. Drei und vier ergeben sieben, "
    "also hat sie jetzt genau sieben Stifte. Wir prüfen das Ergebnis noch einmal, indem wir von "
    "sieben die vier gekauften Stifte wieder abziehen, und erhalten wieder drei Stifte. #### 7"
)
ENGLISH = (
    "Ann has three pens at first and then buys another four of them. To find out how many pens she "
    "has now we add the two numbers. Three and four make seven, so that she has exactly seven pens "
    "now. We check the result once more by taking the four pens that she bought away from seven, "
    "and we get three, as the question says it should be. #### 7"
)


def token(*parts):
    return ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts)


def make(name, **options):
    pytest.importorskip(LIBRARIES[name], reason=f"needs grpo-guard[{name}]")
    return load(VERIFIERS, name)(**options)


def verdict(verifier, text, prompt=ASKED):
    (one,) = verifier.verify([Completion(prompt, text, node="n")])
    return one


def spans(verifier, text, prompt=ASKED):
    return [text[slice(*f.char_span)] for f in verdict(verifier, text, prompt).findings]


@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        "AKIA" + "ABCDEFGH" * 2,
        "glpat-" + "abcDEF123_" * 2,
        "sk-" + "aB3" * 6 + "aBT3BlbkFJ" + "cD4" * 6 + "xY",
        "-----BEGIN RSA PRIVATE KEY-----",
        "xoxb-123456789012-1234567890123-abcdefghijklmnopqrstuvwx",
        token(b'{"alg":"HS256"}', b'{"sub":"1"}'),
        "://admin:hunter22@",
    ],
)
def test_secrets_are_found_at_their_spans(secret):
    text = f"{PLAIN}\nBy the way: https{secret} or {secret} it is"
    found = spans(make("secrets"), text)
    assert any(secret in piece or piece in secret for piece in found)
    (one, *_) = verdict(make("secrets"), text).findings
    assert one.kind == "secret"
    assert secret not in one.message


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        'API_KEY = "YOUR_API_KEY"',
        '"destCidr": "0.0.0.0/0"',
        "sha256: " + "0123456789abcdef" * 4,
        "'aGVsbG8gd29ybGQgdGhpcyBpcyBhIHRleHQ='",
        "ghp_short and AKIAtoo and glpat-x",
        "",
    ],
)
def test_honest_answers_contain_no_secrets(text):
    assert verdict(make("secrets"), text).accepted


def test_noisy_plugins_run_only_if_named():
    text = 'API_KEY = "YOUR_API_KEY"'
    assert spans(make("secrets", plugins=["KeywordDetector"]), text) == ["YOUR_API_KEY"]
    digest = "'" + "0123456789abcdef" * 4 + "'"
    assert spans(make("secrets", plugins=["HexHighEntropyString"]), digest) == [digest[1:-1]]
    with pytest.raises(ValueError, match="did you mean 'KeywordDetector'"):
        make("secrets", plugins=["KeywordDetektor"])


@pytest.mark.parametrize(("name", "text"), [("secrets", TOKEN), ("pii", "ann.lee@thief.org")])
def test_completion_may_repeat_a_trusted_prompt_only(name, text):
    one = make(name)
    answer = f"It is {text} here."
    assert verdict(one, answer).rejected
    assert verdict(one, answer, f"Repeat {text} once.").accepted
    assert spans(one, answer, "Repeat the ghp once.") == [text]
    theirs = Completion(f"Repeat {text} once.", answer, prompt_trusted=False)
    assert Guard(one, policy=Policy("zero", "zero")).apply([1.0], [theirs]) == [0.0]


def test_threat_deeply_nested_web_token():
    """An exception would be an abstention that an author can cause."""
    deep = token(b'{"a":' + b"[" * 1200, b"{}")
    found = make("secrets").verify([Completion(ASKED, f"{deep} {TOKEN}")])
    assert [one.outcome for one in found] == ["reject"]


@pytest.mark.parametrize("size", [1_900, 30_000])
def test_threat_secret_in_a_very_long_line(size):
    for place in (10, 990, 1_000, 1_010, size):
        text = "x " * (place // 2) + TOKEN + " y" * ((size - place) // 2)
        assert TOKEN in spans(make("secrets"), text)
        mail = "ann.lee@thief.org"
        assert mail in spans(make("pii"), text.replace(TOKEN, mail))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Write to ann.lee@thief.org today", "email address"),
        ("My card is 4111 1111 1111 1111, take it", "credit card"),
        ("Pay to DE89370400440532013000 now", "iban code"),
        ("Send it to 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "crypto"),
        ("It is 00:1B:44:11:3A:B7 here", "mac address"),
        ("SSN 536-90-4399 it is", "us ssn"),
    ],
)
def test_personal_data_of_the_default_kinds(text, kind):
    one = verdict(make("pii"), text)
    assert one.rejected
    assert kind in {f.message.removeprefix("has the form of: ") for f in one.findings}
    for finding in one.findings:
        assert text[slice(*finding.char_span)] not in finding.message


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "It is 0.6363636363636365 of them, or 6.363636363636365.",
        "Add 1.1256 - 3.4264 to quotient.degree and 0.0.0.0",
        "a@b and x @ y.z and @ann",
        'send("user@example.com", to="admin@mail.example.org")',
        "1234 5678 9012 3456",
        "",
    ],
)
def test_numbers_and_code_are_not_personal_data(text):
    assert verdict(make("pii"), text).accepted


def test_further_kinds_can_be_enabled_by_name():
    assert spans(make("pii", entities=["IP_ADDRESS"]), "from 93.184.216.34 on") == ["93.184.216.34"]
    assert spans(make("pii", entities=["PHONE_NUMBER"]), "call (212) 555-0182 now")
    with pytest.raises(ValueError, match=r"PiiVerifier\.entities: expected one of CREDIT_CARD"):
        make("pii", entities=["PHONE"])


def test_threat_text_cannot_make_this_process_open_a_connection(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert verdict(make("pii"), "ann@mail.thief.org").rejected
    assert verdict(make("pii"), "ann@nothing.notasuffix").accepted
    assert verdict(make("secrets"), TOKEN).rejected


def test_language_other_than_the_prompts_is_found():
    one = make("language")
    assert verdict(one, ENGLISH).accepted
    found = verdict(one, GERMAN)
    assert found.rejected
    assert (found.findings[0].kind, found.findings[0].message[-2:]) == ("other_language", "de")
    mixed = ENGLISH.ljust(1000) + GERMAN
    assert verdict(one, mixed).findings[0].char_span == (1000, len(mixed))
    assert verdict(one, GERMAN, "Ann hat drei Stifte und kauft vier dazu. Wie viele?").accepted
    assert verdict(one, GERMAN, "Translate the following solution into German.").accepted


def test_allowed_languages_in_addition_to_or_instead_of_the_prompts():
    assert verdict(make("language", allowed=["de"]), GERMAN).accepted
    only_english = make("language", allowed=["en"])
    assert verdict(only_english, GERMAN, "3 + 4 = ?").rejected
    # No text says which language to expect.
    assert verdict(make("language"), GERMAN, "3 + 4 = ?").accepted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sieben Stifte.",
        "7",
        "```python\n" + "drei = vier + fuenf_stifte_und_noch_mehr\n" * 30 + "```",
        "$$" + r"\sum_{i=1}^{n} x_i + \frac{a}{b} \cdot c " * 20 + "$$",
        "x = 3 y + 4 z - a b c\n" * 40,
    ],
)
def test_short_texts_code_and_formulas_have_no_language(text):
    assert verdict(make("language"), text).accepted


def test_invalid_languages_are_refused():
    with pytest.raises(ValueError, match=r"LanguageVerifier\.allowed: .*got 'xx'"):
        make("language", allowed=["xx"])
    with pytest.raises(ValueError, match="at least two"):
        make("language", languages=["en"])
    with pytest.raises(ValueError, match="confidence in"):
        make("language", confidence=0)


EXAMPLES = {
    "secrets": [(PLAIN, "accept"), (f"{PLAIN} {TOKEN}", "reject")],
    "pii": [(PLAIN, "accept"), (f"{PLAIN} Mail ann@thief.org", "reject")],
    "language": [(ENGLISH, "accept"), (GERMAN, "reject"), (PLAIN, "accept")],
}


def broken(verifier):
    def load():
        raise OSError("the library's data are gone")

    verifier.load = load
    return verifier


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_rules_keep_the_contract(name):
    make(name)
    check_verifier(
        lambda: make(name),
        [(Completion(ASKED, text), outcome) for text, outcome in EXAMPLES[name]],
        make_broken=lambda: broken(make(name)),
    )


@pytest.mark.parametrize("name", LIBRARIES)
def test_severity_length_limit_and_pickling_work_as_for_every_rule(name):
    (good, _), (bad, _), *_ = EXAMPLES[name]
    one = pickle.loads(pickle.dumps(make(name)))
    assert [verdict(one, text).outcome for text in (good, bad)] == ["accept", "reject"]
    assert pickle.loads(pickle.dumps(one)).severities == one.severities
    (kind,) = one.KINDS
    reported = verdict(make(name, severity={kind: "report"}), bad)
    assert reported.accepted
    assert reported.findings
    assert verdict(make(name, max_characters=10), "x" * 11).cause == "overlong"
    built = build_verifier({"type": name, "max_characters": 5_000}, 1e-3)
    assert verdict(built, bad).rejected
    with pytest.raises(ConfigError, match="max_characters"):
        build_verifier({"type": name, "max_characters": 0}, 1e-3)


def test_rules_are_registered_and_described():
    assert {*LIBRARIES, "toxicity"} <= set(names(VERIFIERS))
    listed = CliRunner().invoke(app, ["verifiers"]).output
    schema = json.loads(CliRunner().invoke(app, ["config", "schema"]).output)
    text = json.dumps(schema)
    for name in (*LIBRARIES, "toxicity"):
        assert f"type: {name}\n" in listed
        assert f'"const": "{name}"' in text
    assert "pip install 'grpo-guard[secrets]'" in listed


@pytest.mark.parametrize("name", LIBRARIES)
def test_missing_library_error_names_the_install_command(name, monkeypatch):
    package, there = LIBRARIES[name], importlib.util.find_spec
    monkeypatch.setattr(
        rule.importlib.util, "find_spec", lambda n, *a: None if n == package else there(n, *a)
    )
    command = f"needs {package}, which is not installed: pip install 'grpo-guard[{name}]'"
    with pytest.raises(ImportError) as error:
        load(VERIFIERS, name)()
    assert str(error.value) == command
    with pytest.raises(ConfigError) as wrong:
        build_verifier({"type": name}, 1e-3)
    assert command in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert f"{name}: {command}" in CliRunner().invoke(app, ["doctor"]).output


def test_importing_a_rule_loads_no_library():
    code = "import sys\nfrom grpo_guard.content.extras import language, pii, secrets, toxicity\n"
    code += f"print(*{{*sys.modules}} & {{*{[*LIBRARIES.values(), 'torch', 'transformers']}}})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.split() == [], ran.stderr
