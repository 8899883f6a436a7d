"""Queries and labelled rows."""
