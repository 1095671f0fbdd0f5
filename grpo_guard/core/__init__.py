"""The core types (completion, verdict, verifier), and how verifiers are run and combined."""
