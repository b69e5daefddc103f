"""Figures, heatmaps and pages of signed scores."""
