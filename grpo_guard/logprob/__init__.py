"""Score each token of a completion under the shared policy and draw conclusions from the scores."""
