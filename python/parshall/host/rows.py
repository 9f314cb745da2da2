"""The rows of an Arrow table as Python's values, without pandas."""

from typing import Any

import pyarrow as pa


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table; times are nanoseconds since 1970, which Arrow gives to no one without pandas."""
    if not table.num_rows:
        return []
    times = {field.name for field in table.schema if pa.types.is_timestamp(field.type)}
    plain = [table[name].cast(pa.int64()) if name in times else table[name] for name in table.column_names]
    rows: list[dict[str, Any]] = pa.table(plain, names=table.column_names).to_pylist()
    return rows
