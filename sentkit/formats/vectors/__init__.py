"""Takes rows with vectors, or vector files, and returns arrays with the rows they belong to; writes both."""
