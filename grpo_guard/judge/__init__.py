"""A language model as a verifier: the contract it is given, how its answer is read, what it costs.

The error model, before any code:

1. Code comes first and can decide alone: screens and length limits run before any call, and no
   completion can talk them out of it.
2. What the completion can make the judge do rejects: an answer that is no verdict, a refusal, a
   quotation that does not occur. If it abstained, the policy would learn to confuse the judge.
3. What it cannot abstains: time-outs, rate limits, a provider's errors and broken replies, an open
   circuit, a spent budget.
4. One verdict per completion, in order, whatever happened to the others; what was asked and paid is
   in its usage, also where no verdict came of it.
"""
