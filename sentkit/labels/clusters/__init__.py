"""Takes rows with vectors; returns a cluster for each row, or a report."""
