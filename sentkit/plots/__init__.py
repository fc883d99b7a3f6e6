"""Takes vectors, reports or logs and returns pictures: as SVG, PNG or PDF, or as JSON."""
