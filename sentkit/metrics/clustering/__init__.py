"""Takes cluster labels and returns their agreement, stability, silhouette and keywords."""
