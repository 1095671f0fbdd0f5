"""A language model as a verifier: the contract it gets, how its answer is read, what it costs.

The error model, before any code:

1. Code comes first and can decide alone: screens and length limits run before any call, and no
   completion can talk them out of it.
2. If the completion can cause it, it rejects: an answer without a verdict, a refusal, a made-up
   quotation. If it abstained, the policy would learn to confuse the judge.
3. If the completion cannot cause it, it abstains: time-outs, rate limits, provider errors and
   broken replies, an open circuit, a spent budget.
4. One verdict per completion, in order, whatever happens to the others. Its usage counts every
   request and token, even if they gave no verdict.
"""
