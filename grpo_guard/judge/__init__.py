"""A language model as a verifier: its instructions, how its answer is read, and what it costs.

The judge follows one error model:

1. Code comes first and can decide alone: screens and length limits run before any call, and no
   completion can talk them out of a rejection.
2. A failure that the completion can cause leads to a rejection: an answer without a verdict, a
   refusal, a made-up quotation. If these led to an abstention, the policy would learn to cause
   them.
3. A failure that the completion cannot cause leads to an abstention: time-outs, rate limits,
   provider errors and broken replies, an open circuit, a spent budget.
4. There is one verdict per completion, in order, whatever happens to the others. Its usage counts
   every request and token, even those that led to no verdict.
"""
