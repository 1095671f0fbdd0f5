"""Find every equation in a completion, parse it strictly, and evaluate it exactly."""
