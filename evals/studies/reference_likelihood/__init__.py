"""What the reference-likelihood verifier finds and what it costs honest work.

``python -m grpo_guard.evals.studies.reference_likelihood --model MODEL --data FOLDER -o FILE``
"""
