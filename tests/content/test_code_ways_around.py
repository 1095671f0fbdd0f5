"""Strings that run: what sympy and `singledispatch` evaluate, next to similar honest code."""

import pytest

from tests.content.code_programs import judge, kinds, tagged

U = "u = '_' * 2\n"
DEF = "def f(u):\n    return {}\nprint(f('__'))"


# Ran code: sympy passes a string to eval.
@pytest.mark.parametrize(
    "source",
    [
        "from sympy import simplify\n"
        + U
        + "print(simplify(u + 'imp' + 'ort' + u + \"('o' 's')\"))",
        "from sympy import simplify\n" + DEF.format("simplify(u + 'imp')"),
        "import sympy as sp\n" + DEF.format("sp.S(f'{u}import{u}')"),
        "import sympy as sp\n" + DEF.format("sp.core.S(''.join([u, 'x']))"),
        "from sympy import *\n" + DEF.format("solve('{}x'.format(u))"),
        "from sympy import N\nt = 'x'\nt = 3 * t\nprint(N(t + input_[0]))\ninput_ = []",
        "import sympy\nprint(sympy.expand('getattr(x, y)'))",
        "import sympy\nprint(sympy.Eq('x', 'eval(y)'))",
        "import sympy\nprint(sympy.factor(['(lambda: 3)()']))",
        "import sympy\nx = sympy.Symbol('x')\n" + DEF.format("x.subs(x, u + 'y')"),
        "from sympy import Matrix\nprint(Matrix([\"chr(3) + 'a'\"]))",
    ],
)
def test_sympy_may_only_evaluate_formulas(source: str) -> None:
    assert "dynamic_code" in kinds(judge(tagged(source)))


@pytest.mark.parametrize("function", ["sympify", "parse_expr", "lambdify", "S", "simplify"])
def test_allowing_sympy_does_not_allow_code_in_strings(function: str) -> None:
    start = f"import sympy\nfrom sympy import {function} as s\n"
    for bad in (DEF.format("s(u + 'x')"), "print(s('x.__class__'))", "print(s('open(3)'))"):
        assert judge(tagged(start + bad), allow=["sympy"]).rejected
    assert judge(tagged(start + "print(s('x**2 + 1'))"), allow=["sympy"]).accepted


@pytest.mark.parametrize(
    "source",
    [
        "x = sp.Symbol('x')\nprint(sp.solve(x**2 - 4, x), sp.simplify(x + x))",
        "print(sp.solve('x**2 - 4'), sp.expand('(x + 1)**2'))",
        "eq = 'x + 3'\nprint(sp.solve(eq))",
        "xs = sp.symbols(' '.join(f'x{i}' for i in range(3)))\nprint(xs)",
        "xs = [sp.Symbol(f'x{i}') for i in range(3)]\nprint(sum(xs))",
        "x, y = sp.symbols('x y', positive=True)\nprint(sp.Eq(x, y), sp.S(3) / 4)",
        "print(sp.Poly([1, 2], sp.Symbol('x'), domain='QQ'), sp.Rational('1/3'))",
        "n = 3\nprint(sp.factorint(n), sp.N(sp.pi, n), str(sp.pi) + 'x')",
        "d = {'x': 3}\nx = sp.Symbol('x')\nprint((x + 1).subs(x, d['x']))",
    ],
)
def test_honest_algebra_passes(source: str) -> None:
    assert judge(tagged(f"import sympy as sp\n{source}")).accepted


# functools.singledispatch evaluates annotations that are strings.
@pytest.mark.parametrize(
    ("annotation", "fine"),
    [
        ("int", True), ("'int'", True), ("list[int] | None", True), ("int | 'str'", True),
        ("u + 'import' + u", False), ("f'{u}x'", False), ("str(u)", False), ("'f(3)'", False),
    ],
)  # fmt: skip
def test_evaluated_annotations_must_be_types(annotation: str, fine: bool) -> None:
    source = (
        "from functools import singledispatch\nu = 'x'\n@singledispatch\ndef f(n):\n    return n\n"
        f"@f.register\ndef _(n: {annotation}):\n    return n\nprint(f(3))"
    )
    assert judge(tagged(source)).accepted == fine
    assert judge(tagged(f"u = 'x'\ndef f(n: {annotation}):\n    return n\nprint(f(3))")).accepted


# Errors of sympy only take a message, which is not evaluated.
def test_sympy_errors_accept_any_text() -> None:
    source = "import sympy as sp\ndef f(n):\n    raise sp.SympifyError('no ' + str(n))\nf(3)"
    assert judge(tagged(source)).accepted
