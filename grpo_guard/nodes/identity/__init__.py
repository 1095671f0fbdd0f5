"""Who sent a completion: signed envelopes, the keys that may sign, and the gate before a guard."""
