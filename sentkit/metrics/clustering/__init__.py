"""Takes cluster labels; returns their agreement, stability and silhouette."""
