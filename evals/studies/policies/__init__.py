"""How the policies that ship were trained."""
