"""Optional rules that build on third-party libraries, one rule per file; see docs/extras.md.

No preset uses them. Importing a rule is cheap: its library is not imported until the rule is built.
"""
