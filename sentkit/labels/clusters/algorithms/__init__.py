"""Takes an array of vectors; returns a cluster for each row and the centroids."""
