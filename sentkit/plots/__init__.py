"""Takes vectors, reports or logs and returns pictures: as SVG, PNG or PDF, as characters, or as JSON."""
