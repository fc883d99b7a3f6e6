"""Takes vectors and returns labels: clusters and predicted classes."""
