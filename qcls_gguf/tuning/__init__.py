"""Fits calibrations of the scores."""
