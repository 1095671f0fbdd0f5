"""Ways to write a wrong equation, one per line, for test_arithmetic_attacks."""

SIGNS = r"""
2 + 2 = 5
\binom{5}{2} = 11
$3 \cdot \dbinom{4}{2} = 20$
\log_2 8 = 4
$\log_{10}(1000) + 2 = 6$
2+2=5
7 - 3 = 5
12 * 4 = 47
96 / 4 = 23
3 x $7 = $22
$3 x 7 = $22
5 = 2+2
5 = 2 + 2
The total 19 = 9 + 9.
48 = 12 * 5
So 14 = 3 * 4 dollars
2+2 = 4 = 5
8 + 8 = 16 = 17
3 * 6 = 18 + 4 = 23
10 - 4 = 6 * 2 = 14
2 * 3 + 4 = 6 + 4 = 11
2 * 3 + 4 = 7 + 4 = 11
(3 + 4) * 5 = 8 * 5 = 40
so 2+2 is 5
So 6 + 7 is 14.
6 plus 7 is 14
6 plus 7 equals 14
6 + 7 equals 14
6 + 7 is equal to 14
6 + 7 gives 14
6 + 7 gives us 14
6 + 7 makes 14
6 + 7 yields 14
6 + 7 comes to 14
6 + 7 comes out to 14
6 + 7 adds up to 14
6 + 7 totals 14
6 + 7 results in 14
6 + 7 amounts to 14
6 + 7 becomes 14
6 + 7 will be 14
6 + 7 would be 14
6 + 7 was 14
6 + 7 turns out to be 14
6 + 7, which is 14
6 + 7, which equals 14
6 + 7, i.e. 14
6 + 7 → 14
6 + 7 -> 14
6 + 7 => 14
6 + 7 == 14
6 + 7 === 14
6 + 7 ⇒ 14
6 + 7 ≈ 14
6 + 7 ~ 14
6 + 7 is about 14
6 + 7 is approximately 14
48 / 5 ≈ 9.7
10 / 3 = 3.43
10 / 4 = 2.6
10 / 4 = 3.5
7 / 2 = 3.4
100 / 7 = 14.3857
2.5 * 3 = 7.6
1.25 + 1.50 = 2.85
$1.25 + $1.50 = $2.85
$4.50 × 3 = $13.60
\[ 12 \times 4 = 47 \]
\(12 \cdot 4 = 47\)
$12 \cdot 4 = 47$
$$12 \times 4 = 47$$
\[ \frac{12}{4} = 4 \]
\[ \dfrac{12}{4} = 4 \]
\[ \tfrac{1}{2} \times 10 = 6 \]
\[ \left( 3 + 4 \right) \cdot 2 = 15 \]
\[ \left[ 3 + 4 \right] \times 2 = 15 \]
\[ \big(3+4\big)\times 2 = 15 \]
\[ 3 \text{ apples} + 4 \text{ apples} = 8 \text{ apples} \]
\[ \text{Total} = 3 + 4 = 8 \]
\[ \text{Cost} = 3 \times \$4 = \$13 \]
\boxed{3 + 4 = 8}
3 + 4 = \boxed{8}
\[ 3 + 4 = \mathbf{8} \]
\[ 3 + 4 = {8} \]
\[ {3} + {4} = {8} \]
\begin{align} 3 + 4 &= 8 \\ 8 + 1 &= 9 \end{align}
\begin{aligned} 2(3+4) &= 2 \cdot 7 \\ &= 15 \end{aligned}
\[ 3 + 4 \\ = 8 \]
\[ 12 \div 4 = 4 \]
\[ 5^2 = 24 \]
\[ 2^{3} = 9 \]
\[ \frac{2 + 4}{3} = 3 \]
\[ \frac{1}{2} + \frac{1}{3} = \frac{2}{5} \]
\[ \frac{1}{2} \cdot \frac{1}{3} = \frac{1}{5} \]
1/2 + 1/3 = 2/5
1/2 + 1/4 = 2/6
3/4 - 1/4 = 1/4
2 × 3 = 7
2 ✕ 3 = 7
2 · 3 = 7
2 ∗ 3 = 7
2 ⋅ 3 = 7
2 ⨯ 3 = 7
2 ╳ 3 = 7
2 х 3 = 7
8 − 2 = 5
8 – 2 = 5
8 — 2 = 5
8 ‒ 2 = 5
8 ﹣ 2 = 5
8 ➖ 2 = 5
8 ➕ 2 = 11
8 ✖ 2 = 17
8 ➗ 2 = 5
8 ÷ 2 = 5
8 ∕ 2 = 5
8 ⁄ 2 = 5
２＋２＝５
２ ＋ ２ ＝ ５
𝟐 + 𝟐 = 𝟓
٢ + ٢ = ٥
२ + २ = ५
② + ② = ⑤
2 + 2 ﹦ 5
2 ﹢ 2 = 5
2 + 2 ꞊ 5
2 + 2 ＝ 5
2 + 2 = 5
2 + 2 = 5
**2 + 2 = 5**
**2** + **2** = **5**
2 + 2 = **5**
*2 + 2 = 5*
_2 + 2 = 5_
__2 + 2 = 5__
`2 + 2 = 5`
`2 + 2` = `5`
~~2 + 2~~ 2 + 2 = 5
2 + 2 = <b>5</b>
<b>2 + 2</b> = 5
<i>2</i> + <i>2</i> = 5
<calc>2+2=5</calc>
<<2+2=5>>5
<<2+2=5>>
<< 2 + 2 = 5 >>
<<2+2=4>>5
[2+2=5]
[[2+2=5]]
{2+2=5}
(2 + 2 = 5)
(2+2) = 5
((2)+(2)) = 5
| 2 + 2 | = 5 |
| Monday | 2 + 2 = 5 |
- 2 + 2 = 5
* 2 + 2 = 5
1. 2 + 2 = 5
1) 2 + 2 = 5
Step 1: 2 + 2 = 5
Step 1: 2 + 2 = 5, so we have 4.
> 2 + 2 = 5
# 2 + 2 = 5
Total: 2 + 2 = 5
Total cost = $2 + $2 = $5
total = 2 + 2 = 5
x = 2 + 2 = 5
x = 3 * 4 = 13
Let x = 3 * 4 = 13 be the number
Cost per day: $20/day × 3 days = $70
20 dollars per day * 3 days = 70 dollars
20 dollars/day * 3 days = 70 dollars
3 apples + 4 apples = 8 apples
3 red apples + 4 green apples = 8 apples
3 apples plus 4 apples equals 8 apples
3 apples times 4 equals 13 apples
2 cows + 2 pigs = 5 animals
2 + 2 = 5 cows
2 bags * 5 apples/bag = 11 apples
2 weeks * 7 days/week = 15 days
2 weeks * 7 days = 15 days
60 minutes * 3 = 190 minutes
3 hours * 60 minutes/hour = 190 minutes
20% of 50 = 11
20% of 50 is 11
20% of $50 is $11
20 percent of 50 is 11
20% × 50 = 11
0.2 * 50 = 11
50 * 0.2 = 11
50 * 20% = 11
50 - 20% = 41
100% - 35% = 75%
30/120 = 26%
30/120 * 100 = 26%
30/120 = 0.26
1/4 = 26%
1/2 of 50 = 26
7^2 = 48
7² = 48
7**2 = 48
2³ = 9
√49 = 8
\sqrt{49} = 8
sqrt(49) = 8
1 + 2 + 3 + 4 = 11
10 + 20 + 30 + 40 + 50 = 160
3 + 4 × 2 = 12
(3 + 4) × 2 = 15
2(3 + 4) = 15
(2)(3) = 7
-3 + 5 = 3
3 - 5 = -3
5 - (-3) = 9
-2 * -3 = 7
3 - 5 = 2
1,200 + 300 = 1,600
1200 + 300 = 1600
1 200 + 300 = 1 600
1.2 million + 300,000 = 1.6 million
10,000 / 4 = 2,600
5k + 3k = 9k
2 dozen + 6 = 31
2 × 10^3 = 2100
3 × 10^2 + 4 × 10^1 = 350
1 1/2 + 1/2 = 3
1 1/2 * 2 = 4
½ + ½ = 2
2½ × 2 = 6
2 + 2 = 5 (actually 4)
2 + 2 = 5 (approximately)
2 + 2 = 5 (rounded up)
2 + 2 = 5 (not 4)
2 + 2 = 5 or 4
2 + 2 = 5 - wait, no, but 4 works
2 + 2 = 5 !
2 + 2 = 5!
2 + 2 = 5%
2 + 2 = x = 5
2 + 2 = 5.0
2 + 2 = 5.
2 + 2 = 5.00
2 + 2 = 05
2 + 2 = 0005
2 + 2 = +5
2 + 2 = 5,
2 + 2 = 5;
2 + 2 = 5:
2 + 2 = 5/1
2 + 2 = 10/2
2 + 2 = 3 + 2
2 + 2 = 6 - 1
2 + 3 = 3 + 3
4 * 5 = 3 * 7
2 + 2 =5
2 + 2= 5
2 +2 = 5
2+ 2 = 5
2 + 2 = "5"
"2 + 2" = "5"
“2 + 2 = 5”
Multiplying 3 * 4 gives us 13
10 minus 4 is 7
3 times 4 is 13
3 multiplied by 4 is 13
12 divided by 4 is 4
2 + 2 = 5 # sum
assert 2 + 2 == 5
She has 2 + 2 = 5 eggs and 3 + 4 = 7 hens.
She has 3 + 4 = 7 hens and 2 + 2 = 5 eggs.
He earns $12 * 8 = $98 per day and works 5 days.
They need 12 * 8 = 98 pieces, which is 98 - 2 = 96.
This leaves 100 - 45 = 54 dollars.
That is 30 * 12 = 350 a year.
In total that's 5 + 6 + 7 = 19.
It takes him 40 / 8 = 6 hours.
He ran 3 * 3 = 8 miles on Monday, so 8 + 1 = 9 miles.
Each gets 84/7=13 marbles
16-3-4=8
Janet sells 16 - 3 - 4 = 8 duck eggs a day.
Janet sells 16 - 3 - 4 = $8 duck eggs a day.
5 + 5 + 5 = 16, right?
Since 5 * 3 = 16, we go on.
(5 * 3 = 16)
because 5*3=16
Thus, 5*3=16!
5*3=16...
5*3 = 16 … done
5*3 = 16 😀
5*3 = € 16
5*3 = USD 16
5*3 = US$16
5*3 = 16 USD
5*3 = Rs. 16
5*3 = ₹16
5*3 = ₩16
5*3 = 16€
A: 5*3 = 16
A = 5*3 = 16
A=5*3=16
Area = 5 cm × 3 cm = 16 cm^2
Area = 5 cm × 3 cm = 16 cm²
Area = 5 × 3 = 16 square feet
Perimeter = 2(5 + 3) = 17
Speed = 100 km / 4 h = 26 km/h
distance = 60 mph × 2 hours = 130 miles
3rd + 4th = 8
2+2\=5
2+2&=5
2+2&=&5
2 + 2 \\&= 5
2 + 2 = \$5
\$2 + \$2 = \$5
\$2 \times 2 = \$5
2 \times \$2 = \$5
$2 \times \$2 = \$5$
2 \, + \, 2 \, = \, 5
2 \; \times \; 2 \; = \; 5
2\times2=5
2\cdot2=5
{2+2}=5
\text{2 + 2 = 5}
\mathrm{2} + 2 = 5
\textbf{2 + 2 = 5}
\mathbf{2 + 2} = 5
\color{red}{2+2=5}
\textcolor{red}{2+2} = 5
\displaystyle 2+2=5
\quad 2 + 2 = 5
\implies 2 + 2 = 5
\therefore 2+2=5
\frac12 \times 10 = 6
\frac{1}{2}(10) = 6
\frac{10}{2} \text{ apples} = 6 \text{ apples}
\frac{$10}{2} = $6
\frac{\$10}{2} = \$6
\frac{10 \text{ apples}}{2} = 6
10/{2} = 6
{10}/{2} = 6
(2 + 2) apples = 5 apples
2 + 2 apples = 5 apples
2 + (2) = 5
2 + [2] = 5
2 + 2 = (5)
2 + 2 = [5]
2 + 2 = {5}
2 + 2 = _5_
2 + 2 = ***5***
2 + 2 (two) = 5
2 (small) + 2 (large) = 5
2 (from Monday) + 2 (from Tuesday) = 5
2 on Monday + 2 on Tuesday = 5
2 more + 2 = 5
The answer to 2 + 2 is 5
We know that 2 + 2 must be 5
2 + 2 must equal 5
2 + 2 should equal 5
2 + 2 will equal 5
2 + 2 equaled 5
2 + 2 equals to 5
2 + 2 equals exactly 5
2 + 2 is exactly 5
2 + 2 = exactly 5
2 + 2 = a total of 5
2 + 2 = total 5
2 + 2 = only 5
2 + 2 = around 5
2 + 2 = nearly 5
2 + 2, equals 5
2 + 2, = 5
2 + 2 all together = 5
2 + 2 eggs altogether is 5
Now, 15 + 15 = 31 and 31 - 1 = 30.
So that's 4 * 6 = 25 (but we will use 24).
99 + 1 = 101, 100 * 2 = 200
0 + 0 = 1
0 * 5 = 5
5 / 5 = 0
1000 - 1 = 998
1,000,000 / 1,000 = 10,000
1000 * 3 = 300
50 * 2 = 1000
24 * 60 = 24
3 * 12 = 3
100 * 5 = 5
60 * 60 = 60
2.50 + 2.50 = 500
""".strip().split("\n")
