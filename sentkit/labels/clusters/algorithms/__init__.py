"""Takes an array of vectors and returns a cluster for each row and the centroids."""
