"""Labels whole tables: files of any size in shards, and Arrow tables in memory. Needs the extra `label`."""

try:
    import pyarrow  # noqa: F401  # so that its absence is reported here
except ImportError as e:
    raise ImportError("qcls_gguf.labelling needs pyarrow: pip install 'qcls-gguf[label]'") from e

from .arrow import label_table

__all__ = ["label_table"]
