"""Ways to a shell that once passed, and their neighbours; each beside honest code of its form."""

from __future__ import annotations

import pytest
from code_programs import judge, kinds, tagged

U = "u = '_' * 2\n"
DEF = "def f(u):\n    return {}\nprint(f('__'))"


# Ran a command: operator's functions are getattr under another name.
@pytest.mark.parametrize(
    "source",
    [
        "from operator import attrgetter\n" + U + "print(attrgetter(u + 'class' + u)(()))",
        "from operator import attrgetter as a\n" + DEF.format("a(u + 'class' + u)(())"),
        "import operator as o\n" + DEF.format("o.attrgetter(u)(())"),
        "import operator\n" + DEF.format("operator.methodcaller(u + 'subclasses' + u)(object)"),
        "from operator import *\n" + DEF.format("methodcaller(u)(object)"),
        "from operator import methodcaller\nprint(list(map(methodcaller, ['x'])))",
        "from operator import attrgetter\ng = attrgetter\nprint(g('x'))",
        "from operator import attrgetter\nprint(attrgetter('real.__' + 'class__')(1))",
        "from operator import attrgetter\nprint(attrgetter('x.__self__')(print))",
        "from operator import attrgetter\nfor n in ('gi_frame', 'x'):\n    print(attrgetter(n)(1))",
        "from functools import reduce\nprint(reduce(getattr, ['real', 'imag'], 3))",
        "from functools import partial\nprint(partial(getattr, 3)('real'))",
        "print((g := getattr)(3, 'real'))",
        "n = 'real'\n" + U + "match u + 'class' + u:\n    case n:\n        print(getattr(3, n))",
        "for n in ('real',):\n    pass\ndef f(n):\n    return getattr(3, n)\nprint(f('x'))",
        "n = 'real'\ndef f(n):\n    return getattr(3, n)\nprint(f('_' * 2 + 'class'))",
        "n = 'real'\ndef f():\n    global n\n    n = '_' * 2\nf()\nprint(getattr(3, n))",
        "import operator\nprint(operator.call(getattr, 3, 'real'))",
        "print(type.__getattribute__(int, 'real'))",
        "print(object.__getattribute__(3, 'real'))",
        "import string\nprint(string.Formatter().format('{0.real}', 3))",
        "import inspect\nprint(inspect.getattr_static(3, 'real'))",
        "print(vars(int))",
        "def f(self, n):\n    return getattr(self, n)\nprint(f(print, '__se' + 'lf__'))",
        "class A:\n    def f(self, n):\n        return getattr(self, n)\nprint(A.f(print, 'x'))",
        "class A:\n    @staticmethod\n    def f(self, n):\n        return getattr(self, n)",
        "class A:\n    def f(self, x, n):\n        self = x\n        return getattr(self, n)",
        "class A:\n    def f(x, self, n):\n        return getattr(self, n)\nA().f(print, 'x')",
        "self = print\nprint([getattr(self, n) for n in names])",
    ],
)
def test_a_lookup_by_any_name_is_seen(source: str) -> None:
    assert judge(tagged(source)).rejected


@pytest.mark.parametrize(
    "source",
    [
        "from operator import attrgetter\nprint(sorted(xs, key=attrgetter('price', 'n.unit')))",
        "import operator\nprint(sorted(xs, key=operator.attrgetter('price')))",
        "from operator import attrgetter\nf = 'price'\nprint(sorted(xs, key=attrgetter(f)))",
        "from operator import methodcaller\nprint(list(map(methodcaller('upper'), 'ab')))",
        "from operator import itemgetter\nprint(max(xs, key=itemgetter(1)))",
        "n = 'price'\nprint(sorted(xs, key=lambda x: getattr(x, n)))",
        "from operator import itemgetter\nn = 1\nprint(max(xs, key=itemgetter(n, 'name')))",
        "from operator import itemgetter\nprint(list(map(itemgetter, [0, 1])))",
        "from operator import *\nprint(itemgetter(1)((1, 2)))",
        "class A:\n    def f(self, n):\n        return getattr(self, n)()\nprint(A().f('x'))",
        "class A:\n    def f(self, ns):\n        return [getattr(self, n) for n in ns]",
        "class A:\n    @classmethod\n    def f(cls, n):\n        return getattr(cls, n)\nA.f('x')",
    ],
)
def test_plain_getters_pass(source: str) -> None:
    assert judge(tagged(f"xs = []\n{source}")).accepted


# Ran a command: a class pattern reads attributes, and nothing looks like one.
@pytest.mark.parametrize(
    "name",
    [
        "__class__", "__base__", "__bases__", "__subclasses__", "__init__", "__globals__",
        "__builtins__", "__dict__", "__code__", "__self__", "gi_frame", "f_globals", "_os", "sys",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["object({}=c)", "{{'a': [object({}=c)]}}", "int() | str({}=3)"])
def test_a_class_pattern_does_not_walk(name: str, form: str) -> None:
    source = f"match ():\n    case {form.format(name)}:\n        print(3)"
    assert not kinds(judge(tagged(source))).isdisjoint({"interpreter_internals"})


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    __match_args__ = ('x', '__globals__')",
        "class A:\n    u = '_' * 2\n    __match_args__ = (u + 'globals' + u,)",
        "def f(u):\n    class A:\n        __match_args__ = (u,)\n    return A\nf('x')",
        "class A:\n    pass\nA.__match_args__ = tuple(['x'])",
        "class A:\n    (__match_args__ := ['x'][0])",
    ],
)
def test_positions_of_a_pattern_are_listed_plainly(source: str) -> None:
    assert judge(tagged(f"{source}\nmatch 3:\n    case _:\n        print(3)")).rejected


def test_honest_patterns_pass() -> None:
    points = (
        "class P:\n    __match_args__ = ('x', 'y')\n    def __init__(self, x, y):\n"
        "        self.x, self.y = x, y\n"
    )
    cases = (
        "    case P(x, y=0):\n        print(x)\n    case {'system': s, **rest}:\n        print(s)"
    )
    assert judge(tagged(f"{points}match P(1, 0):\n{cases}")).accepted


# Ran code: sympy hands a text to eval.
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
def test_what_sympy_evaluates_is_a_formula(source: str) -> None:
    assert "dynamic_code" in kinds(judge(tagged(source)))


@pytest.mark.parametrize("function", ["sympify", "parse_expr", "lambdify", "S", "simplify"])
def test_allowing_sympy_allows_no_code_in_its_texts(function: str) -> None:
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
def test_annotations_that_are_evaluated_are_types(annotation: str, fine: bool) -> None:
    source = (
        "from functools import singledispatch\nu = 'x'\n@singledispatch\ndef f(n):\n    return n\n"
        f"@f.register\ndef _(n: {annotation}):\n    return n\nprint(f(3))"
    )
    assert judge(tagged(source)).accepted == fine
    assert judge(tagged(f"u = 'x'\ndef f(n: {annotation}):\n    return n\nprint(f(3))")).accepted


# A format string reads attributes; one that is put together shows no name.
@pytest.mark.parametrize(
    "string",
    ["'{0.' + u + 'class}'", "f'{{0.{u}class}}'", "'{0.%sclass}' % u", "'{.' + u", "'{x[' + u"],
)
def test_a_format_string_is_not_completed_unseen(string: str) -> None:
    source = DEF.format(f"({string}).format(3)")
    assert "format_trick" in kinds(judge(tagged(source)))


@pytest.mark.parametrize(
    "string",
    [
        "'{:.' + u + 'f}'",
        "'{:>{w}}'",
        "'{0.real} of {1[0]}'",
        "'{' + u + '}'",
        "'{1.5' + u",
        "'{[('",
    ],
)
def test_honest_format_strings_pass(string: str) -> None:
    source = "def f(u):\n    return {}\nprint(f('3'))"
    assert judge(tagged(source.format(f"({string}).format(3, [1], w=3)"))).accepted


# Errors are named, not evaluated.
def test_errors_of_sympy_take_any_text() -> None:
    source = "import sympy as sp\ndef f(n):\n    raise sp.SympifyError('no ' + str(n))\nf(3)"
    assert judge(tagged(source)).accepted
