"""Honest notation: none of these lines may be called wrong, whatever they mean.

Lines as chat models, LaTeX users and people write them: labels, unknowns, units, times, functions,
percentages, rounding, running calculations. If a line has a plain result, a change to that result
must be found.
"""

import re

import pytest

from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion

LINES = r"""
Let $x$ be the number. Then $2x + 3 = 11$, so $2x = 8$ and $x = 4$.
$$\frac{3}{4} \times 20 = 15$$
\[ 12 \times 4 = 48 \]
\begin{align*} 2(3 + 4) &= 2 \cdot 7 \\ &= 14 \end{align*}
The total is $\$5 \times 3 = \$15$.
**Step 1:** Calculate the cost: 3 × $4.50 = $13.50
1. 5 + 3 = 8
2. 8 × 2 = 16
(1) 2 + 2 = 4; (b) 3+3=6
- 5 + 3 = 8
* 7 - 2 = 5
Step 2 - 3 + 4 = 7
Day 1 - 20 + 30 = 50
$3^2 + 4^2 = 25$
$3^2 + 4^2 = 9 + 16 = 25$
$\sqrt{16} + 3 = 7$
$\sqrt{3^2 + 4^2} = 5$
$|{-5}| + 3 = 8$
|−5| + 3 = 8
5! = 120 and 5!/3! = 20, so 4 * 3 * 2 = 4!
\binom{5}{2} = 10
\binom{n}{2} = 3
\log_2 8x = 3
\log_3 9^2 = 4
\log_{2x}(3) = \log_{3x}(2)
\log_2 5 = 2.32
\log_b 4 = 2 \log
C(5,2) = 10, P(3,2) = 6
$\frac{5!}{3!} = 20$
17 mod 5 = 2 and 3 * 4 ≡ 2 (mod 5)
17 \bmod 5 = 2, 3 \cdot 4 = 2 \pmod{5}
3 * 4 = 2 (mod 10)
17 % 5 = 2
101_2 + 11_2 = 1000_2
log(100) = 2, 2 * log(100) = 4
f(3) = 2*3 + 1 = 7
f(2) + 1 = 6
x = (5 + 3)/2 = 4
x^2 - 5x + 6 = 0
(x - 2)(x - 3) = 0
y = 3x + 2, slope = 3
a_1 + a_2 = 5
S_5 = 5/2 * (2 + 10) = 30
\pi r^2 = \pi (3)^2 = 9\pi
2\pi \cdot 3 = 6\pi
4\pi \approx 12.57
2\sqrt{3} \cdot 2 = 4\sqrt{3}
10 / 3 = 3.33
10 / 3 ≈ 3.33, 10/3 ≈ 3
2/3 = 0.667 = 66.7%
22/7 ≈ 3.14
1234 * 5 = 6170 ≈ 6,200
100 ÷ 3 = 33.333...
7 ÷ 2 = 3 remainder 1
7 / 2 = 3 R 1
17 ÷ 5 = 3 r2
It is 3:30 + 45 minutes = 4:15
5:30 PM - 2:00 PM = 3 hours and 30 minutes
9:00 - 8:15 = 45 minutes
ratio 3:4 = 6:8
12/25/2020 = Christmas
The score was 3-4 = a loss
pages 10-20 = 11 pages
In weeks 1-2 = 30 hours
60% of 50 = 30
0.2 * 50 = 10, 20% * 50 = 10, 20/100 * 50 = 10
50 + 20% = 60
$100 - 10% = $90
100% - 40% = 60%
1 - 0.4 = 60%
(30/120) * 100 = 25%
30/120 * 100% = 25%
15% tip: $40 * 0.15 = $6
half of 10 + 4 = 9
twice 3 + 4 = 10
a third of 30 + 5 = 15
3 bags of 4 apples + 2 apples = 14 apples
5 shirts at $10 + $3 shipping = $53
2 dozen + 6 = 30
2 dozen * 12 = 24 eggs
$1.5 million + $500,000 = $2 million
3 hours * 60 = 180 minutes
90 minutes / 60 = 1.5 hours
20 minutes * 3 = 1 hour
2 hours + 30 minutes = 150 minutes
1 hour - 15 minutes = 45 minutes
6 feet + 3 inches = 75 inches
25 cents * 4 = $1
$0.25 * 4 = 100 cents
3 pens + 2 pencils = $12
3 quarters = 75 cents
1 1/2 + 1/2 = 2
2 1/2 * 2 = 5
1½ + ½ = 2
2\frac{1}{2} + \frac{1}{2} = 3
3 - 5 = -2
-3 + 5 = 2
5 - (-3) = 8
(-2)(-3) = 6
-2^2 = -4 and (-2)^2 = 4
2 + 3 = 5 * 2 = 10
10 - 2 = 8 / 4 = 2
3 + 4 * 2 = 14
2 × 3 = 6 × 4 = 24
6/2(1+2) = 9
6/2(1+2) = 1
500 / 2/5 = 1250
12 000 + 3 000 = 15 000
1,200 + 300 = 1,500
1.200 + 300 = 1.500
10,000/4=2,500
2 * $3.50/each = $7
$5/hour × 8 hours/day × 5 days = $200
5 miles/hour * 2 hours = 10 miles
5 * 3 = 15 + 2 = 17 apples
Is 3 + 4 = 8? No.
3 + 4 ≠ 8
3 + 4 != 8
if 3 + 4 == 8:
total += 3 + 4
not 2 + 2 = 5
2 < 3 + 4 = 7
A + B = 7, so 3 + B = 7
3 + y = 10
5 + ? = 8
5 + ___ = 8
5 + __ = 8
5 + □ = 8
x + 5 - 5 = 12 - 5
2x/2 = 8/2
3n + 2n = 5n
5a + 3b = 11
2m + 55 = 215
10 apples - x = 4
cost - 5 = 10
Total - 3 = 7
5A / 5 = 100 / 5
n = 4k + 1 = 13
3(x + 2) = 15
3 (apples) + 4 (pears) = 7 (fruits)
P = 2(l + w) = 2(3 + 4) = 14
A = l × w = 5 × 3 = 15
v = d/t = 100/4 = 25 km/h
F = ma = 5 kg × 2 m/s^2 = 10 N
E = 5 m^2 + 3 m^2 = 8 m^2
90° + 45° = 135°
180^\circ - 60^\circ = 120^\circ
0.1 + 0.2 = 0.30000000000000004
1/3 + 1/3 = 0.6667
0.33 * 300 = 100
16.67% of 60 = 10
66.67 * 3 = 200
3.33 * 3 = 10
2.5e3 + 1 = 2501
1e3 * 2 = 2000
1 + 2 + ... + 10 = 55
1 + 2 + 3 + \cdots + 10 = 55
1, 2, 3 + 4 = 7
sum of 1, 2 and 3 + 4 = 10
average of 4 + 6 = 5
the mean of 2 + 4 + 6 = 4
gcd(12, 18) = 6
max(3, 4) + 1 = 5
lcm of 4 and 6 = 12
1/4 = 20 students
3/5 = 30 girls
20% = 10 students
5 years ago, 20 - 5 = 15
In 2020, 2020 - 1990 = 30
2 + 2 = 4.
2+2=4, 3+3=6, 4+4=8
2 + 2 = 4 4 + 4 = 8
He has 3 apples and 4 + 5 = 9 pears
3 and 4 + 5 = 12
1 / 2 is 5 apples
1/2 of 10 is 5
half is 5
What is 3 + 4?
3 + 4 is more than 5
3 + 4 is 2 more than 5
The difference 10 - 4 is twice 3
5 times 3 is 15 and 4 divided by 2 is 2
10 is 2 times 5
10 = 2 * 5
24 = 2^3 * 3
x = 24 = 2^3 * 3
36 = 4 x 9 = 6 x 6
2^10 = 1024
10^-2 = 0.01
10^{-2} * 100 = 1
4^(1/2) = 2
8^{1/3} = 2
(1 + 0.05)^2 * 1000 = 1102.50
1000(1.05)^3 = 1157.63
1000 × 1.05³ = 1157.625
2 × 10^3 + 5 = 2005
3.0 × 10^8 m/s * 2 s = 6.0 × 10^8 m
log_2 8 = 3
\log_2(8) + 1 = 4
\sum_{i=1}^{3} i = 6
\int_0^1 2x dx = 1
\frac{d}{dx} 3x^2 = 6x
\frac{12}{4} + \frac{6}{2} = 3 + 3 = 6
\frac{2 \times 3}{6} = 1
\dfrac{1}{3} + \dfrac{1}{6} = \dfrac{1}{2}
\frac{1}{3} = 0.\overline{3}
\frac12 + \frac12 = 1
\left( 3 + 4 \right) \cdot 2 = 14
\text{Total} = 3 \text{ apples} + 4 \text{ apples} = 7 \text{ apples}
5 \, \text{km} + 3 \, \text{km} = 8 \, \text{km}
\$12 + \$5 = \$17
1{,}000 + 500 = 1{,}500
12\% \times 50 = 6
12\% \text{ of } 50 = 6
\boxed{3 + 4 = 7}
3 + 4 = \boxed{7}
= 3 + 4 = 7
3 + 4 =
print(3 + 4) # = 7
x = 3; y = x * 2 = 6
def f(n=3): return n+1
<a href="x=3+4">3=4</a>
https://example.com/?a=1+2&b=3
A: 5 B: 3 + 2 = 5
$20 - $5 = $15 left, $15/3 = $5 each
20-5=15/3=5
Tom: 3*2=6; Ann: 4*2=8. Total: 6+8=14
4 quarters x $0.25 = $1.00
4 weeks * 7 = 28 days
4 weeks = 28 days
365 / 12 = 30.4
50 weeks/year * 40 hours/week = 2000 hours/year
$3 x 2 + $4 = $10
2 x 3 x 4 = 24
2x3x4=24
2 x 4 = 8 x 3 = 24
x 4 = 20
10 x = 50
2 x - 3 = 7
2 X 3 = 6
3 groups x 4 per group = 12
3-2=1, 10-3-2 = 5
7–2=5 and 7—2
15-year-old + 5 years = 20 years
30% off $50 = $35
30% off: 50 * 0.7 = 35
50 - 30% of 50 = 35
50 - 30% = 35
10 - 20% of 10 = 8
1000 * 5% * 2 = 100
1000 * 5 * 2 / 100 = 100
3 1/4 = 13/4
3/4 cup + 1/2 cup = 1 1/4 cups
3/4 + 1/2 = 5/4 = 1 1/4 = 1.25
6 ÷ 2 × 3 = 9
[(3 + 4) × 2] - 1 = 13
{[2 + 3] * 2} + 1 = 11
((2)) + ((3)) = 5
8 hours - 1/2 hour = 7 1/2 hours
$4,000 + $3,000 = $7K
5K + 3K = 8K
$5k + $3k = $8k
60 mph * 2.5 = 150 miles
2 + 2 = 4! Great.
2 + 2 = 4 ✅
2 + 2 → 4
2 + 2 => 4
7 + 5 = 12, carry the 1: 1 + 4 + 3 = 8
27 + 35: 7 + 5 = 12 (write 2, carry 1), 2 + 3 + 1 = 6, so 62
45 x 12 = 45 x 10 + 45 x 2 = 450 + 90 = 540
45 × 12 = (45 × 10) + (45 × 2) = 540
99 × 5 = 100 × 5 - 5 = 495
| 3 | + | 4 | = | 7 |
| Item | 3 × $2 | = $6 |
3 + 4 = **7**
*3 + 4 = 7*
__3 + 4 = 7__
`3 + 4 = 7`
> 3 + 4 = 7
### 3 + 4 = 7
• 3 + 4 = 7
a) 3 + 4 = 7
4! + 1 = 25
P(A) = 3/6 = 1/2 = 0.5 = 50%
P(A and B) = 1/2 * 1/3 = 1/6
1/2 * 1/3 = 1/6 ≈ 16.67%
odds 3/1 = 3 to 1
5 out of 20 = 25%
5/20 = 25 percent
5/20 = 0.25 or 25%
3:00 + 2 hours = 5:00
10am + 3 hours = 1pm
10 + 3 = 13 - 12 = 1pm
11 + 4 = 3 o'clock
2's + 3's = 5
5' + 7" = 67"
0.5 x 60 = 30 min
.5 * 60 = 30
5. + 3. = 8.
3 + 4 = 7 + 2 more = 9
80 / 100 = 80%
0.8 * 100 = 80%
2.50 * 4 = 10.00
£5 + £3 = £8, €5 × 2 = €10
Rs. 5 + Rs. 3 = Rs. 8
5 USD + 3 USD = 8 USD
5$ + 3$ = 8$
75 minutes * 2 = 2 hours 30 minutes
75 + 75 = 2 hours and 30 minutes
60 miles/hour * 30 minutes = 30 miles
$2.50/lb × 8 oz = $1.25
So he pays 0.9*100=90 and then 90*.8=72.
""".strip().split("\n")


@pytest.mark.parametrize("line", LINES)
def test_an_honest_line_is_not_rejected(line: str) -> None:
    verifier = ArithmeticVerifier(on_wrong="reject", textual="judge")
    for text in (line, f"Some words before.\n{line}\nAnd behind it.", f"So we get {line}"):
        (verdict,) = verifier.verify([Completion("", text)])
        assert verdict.accepted, verdict.findings


def test_one_long_text_of_all_lines_is_not_rejected() -> None:
    (verdict,) = ArithmeticVerifier(on_wrong="reject").verify([Completion("", "\n".join(LINES))])
    assert verdict.accepted, verdict.findings


def test_most_changed_results_are_found() -> None:
    """Raise the last whole digit of every plain result by 1 and by 2."""
    total, missed = 0, []
    for line in LINES:
        for equation in equations(line):
            start, end = equation.span
            parts = re.fullmatch(r"([0-9,{}]*?)([0-9])((?:\.[0-9]+)?)", line[start:end])
            for step in (1, 2) if parts else ():
                digit = str((int(parts[2]) + step) % 10)
                changed = line[:start] + parts[1] + digit + parts[3] + line[end:]
                total += 1
                if all(e.right for e in equations(changed)):
                    missed.append(changed)
    assert total > 300
    assert len(missed) <= 0.05 * total, missed
