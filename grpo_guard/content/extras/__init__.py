"""Optional rules that rest on other people's libraries, one file each; docs/extras.md.

No preset uses them. Importing one is cheap: its library is imported when the first is built.
"""
