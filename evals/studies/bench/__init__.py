"""What scoring costs, and that as a page of the documentation."""
