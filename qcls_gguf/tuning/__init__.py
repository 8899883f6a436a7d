"""Fitting what calibrates the scores."""
