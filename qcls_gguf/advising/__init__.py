"""Cheaper configurations that still answer alike: derived from one, tried on queries, and recommended."""
