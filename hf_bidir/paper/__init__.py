"""The TanhMax paper's experiments under a fair protocol: cells in parallel, and a report of all of them."""
