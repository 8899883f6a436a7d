"""Whole tables labelled: files of any size in shards, and Arrow tables in memory. Needs the extra `label`."""

from .arrow import label_table

__all__ = ["label_table"]
