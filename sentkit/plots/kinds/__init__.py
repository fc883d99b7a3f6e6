"""Takes vectors, reports or logs and returns the contents of a picture; one file per kind."""
