"""Takes vectors; returns labels: clusters and predicted classes."""
