"""The TanhMax paper's experiments under a fair protocol: cells trained in parallel, and one report."""
