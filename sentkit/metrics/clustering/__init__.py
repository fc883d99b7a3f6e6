"""Takes cluster labels and returns their agreement, stability and silhouette."""
