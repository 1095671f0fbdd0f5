"""Texts designed to stall, to fill memory or to break a check: each one once succeeded."""

import tracemalloc

import pytest

from grpo_guard.content.code.verifier import MAX_FINDINGS, MAX_TEXT
from grpo_guard.core.verdict import Cause
from tests.content.code_programs import judge, tagged

SIZE = MAX_TEXT - 1000


def lines(line: str) -> str:
    return "\n".join([line] * (SIZE // (len(line) + 1)))


# Each was once read again from each of its characters, for minutes or hours. One match of a
# regular expression holds the interpreter's lock, so the guard's own timeout cannot stop it.
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        "```\n" + "~" * SIZE + "`",  # the reported fence
        "~" * SIZE + "`",
        "~~~" + "a" * SIZE + "`",
        "<code>\n" + "~" * SIZE + "\r</code>",  # a fence in a tag, before a carriage return
        "import a" + " " * SIZE + "!",
        lines("import a" + " " * 1985 + "!"),
        lines("a:" + " " * 1990 + "!"),  # an annotation
        lines("from " + "." * 1985 + " !import"),
        lines("if " + ": " * 990 + "!"),
        lines("f" + "( )" * 660 + "!"),
        "```python\nprint a" + " " * 49_000 + "b\n```",  # Python 2's print
        "```python\nx = = 1\nprint" + " " * 49_000 + "(b\n```",
        "```python\ntype a" + " " * 49_000 + "!\n```",  # a type alias
    ],
    ids=lambda text: repr(text[:12]),
)
def test_no_expression_reads_a_text_twice_over(text: str) -> None:
    assert len(judge(text).findings) <= MAX_FINDINGS


def test_a_text_over_the_limit_is_overlong_before_any_search() -> None:
    words = "She has 12 apples. " * (MAX_TEXT // 19 + 1)
    assert judge(words[:MAX_TEXT]).accepted
    for text in (words[: MAX_TEXT + 1], "<code>" * MAX_TEXT):
        verdict = judge(text)
        assert verdict.rejected
        assert verdict.cause is Cause.OVERLONG
    # Raising the limit for code raises the limit for the text around it.
    assert judge(words[: MAX_TEXT + 1], max_chars=MAX_TEXT).accepted


# Fences count under any line ending.
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_fences_are_found_under_any_line_ending(newline: str, fence: str) -> None:
    text = newline.join(["Text.", f"{fence}python", "{}", fence, "Text."])
    assert judge(text.format("x = = 1; import calc")).rejected
    assert judge(text.format("print(1)")).accepted


# One set per target with every name in it took gigabytes.
def test_a_chain_of_targets_takes_memory_for_its_names_once() -> None:
    names = [f"a{n}" for n in range(4000)]
    source = "=".join(names) + "=[" + ",".join(names) + "]"
    text = tagged(f"{source}\nprint(a1)")
    assert len(text) < 50_000
    tracemalloc.start()
    try:
        judge(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 << 20


# str() of so many digits raises ValueError, so a program that should be rejected was not judged.
@pytest.mark.parametrize("digits", ["0x" + "f" * 3700, "0b" + "1" * 20_000])
@pytest.mark.parametrize(
    "source",
    [
        "d = {%s: lambda a: a}", "print([%s, 1, 2, 3, 4])", "print('a' * %s)", "print(2 ** %s)",
        "print('a'[%s])", "print('a'[:%s])", "print(chr(%s))", "print('%%c' %% %s)", "x = 1 << %s",
        "print(bytes([%s, 1, 2, 3]))", "print('ab'.translate({97: %s}))", "print(range(%s))",
        "if %s > 1.5: print(1)", "match 1:\n    case %s:\n        print(1)", "print(f'{%s}{1}')",
        "print(''.join(chr(ord(c) + %s) for c in 'ab'))", "print(getattr(1, %s))", "x: %s = 1",
        "print('{}'.format(%s))", "print('a'.replace(%s, 'b'))", "print(-%s)", "print(%s == 1j)",
        "from operator import attrgetter\nprint(attrgetter(%s))",
    ],
)  # fmt: skip
def test_an_unprintable_integer_does_not_prevent_a_verdict(digits: str, source: str) -> None:
    verdict = judge(tagged("import calc\n" + source % digits + "\nprint(calc.add(2, 2))"))
    assert "unlisted_import" in {finding.kind for finding in verdict.findings}
    assert verdict.rejected


# Signs in brackets stay below the depth limits, and were too many for recursion.
def test_thousands_of_signs_do_not_prevent_a_verdict() -> None:
    for levels in (5, 15, 30, 50):
        number = ("-" * 58 + "(") * levels + "3" + ")" * levels
        for source in (f"x = [1, 2, 3, {number}]", f"x = 'abc'[{number}]", f"x = range({number})"):
            assert judge(tagged(f"import calc\n{source}\nprint(calc.add(2, 2))")).rejected


LONG = "s = '" + "a" * 10_000 + "'\nt = '" + "b" * 10_000 + "'\n"


# Each line once built up to 100 MB and then cut it.
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "line",
    [
        "s.replace('a', t)",
        "t.join(s)",
        "t.join(s.split('a'))",
        "t.join(('a ' * 5000).split())",
        "'%s%s%s%s%s%s%s%s%s%s%s%s' % (s, s, s, s, s, s, s, s, s, s, s, s)",
        "''.join([s, s, s, s, s, s, s, s, s, s, s, s])",
        "s + s + s + s + s + s + s + s + s + s + s + s",
        "s * 90_000_000",
        "'a' * 9_000 * 9_000",
        "s.translate({97: 'c' * 10_000, 98: '" + "d" * 10_000 + "'})",
        "s.upper().lower().replace('a', t).upper().lower().replace('b', s)",
        "s[::-1][::-1][::-1][::-1][::-1][::-1]",
    ],
)
def test_spelt_text_is_bounded_before_it_is_built(line: str) -> None:
    source = LONG + f"print({line})\n" * ((49_000 - len(LONG)) // (len(line) + 8))
    tracemalloc.start()
    try:
        judge(tagged(source))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20


# Names bound to sums of names double a text each; a name may also refer back to itself.
@pytest.mark.timeout(120)
def test_names_that_lead_to_names_are_followed_within_bounds() -> None:
    doubling = "\n".join(f"a{n + 1} = a{n} + a{n}" for n in range(1500))
    assert judge(tagged(f"a0 = 'xy'\n{doubling}\nprint(a1500)")).findings is not None
    backwards = "\n".join(f"a{n} = a{n + 1} + a{n + 1}" for n in range(1500))
    assert judge(tagged(f"a1500 = 'xy'\n{backwards}\nprint(a0)")).findings is not None
    assert judge(tagged("a = 'x'\nb = c + a\nc = b + a\nd = d + a\nprint(b)")).findings is not None


# Long chains of plain arithmetic and of names do not spell out text.
@pytest.mark.parametrize(
    "source",
    [
        "n = " + "*".join(str(k) for k in range(1, 200)),
        "n = " + "+".join(str(k) for k in range(1, 500)),
        "x0 = 1\n" + "\n".join(f"x{k + 1} = x{k} + {k}" for k in range(300)) + "\nn = x300",
        "n = 'day ' + " + " + ".join(f"'and day {k} '" for k in range(300)),
        "n = '-' * 40 + '=' * 40",
    ],
    ids=lambda source: source[:24],
)
def test_long_honest_expressions_pass(source: str) -> None:
    assert judge(tagged(f"{source}\nprint('It is', n)")).accepted
