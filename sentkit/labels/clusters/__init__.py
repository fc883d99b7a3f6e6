"""Takes rows with vectors and returns a cluster for each row, or a report."""
