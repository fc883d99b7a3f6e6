"""Takes vectors and returns labels, with numpy: clusters and predicted classes."""
