"""The rows of an Arrow table as Python's values, and back, without pandas.

Arrow imports pandas, where it is installed, to look at any list: that takes longer than all else here.
"""

from collections.abc import Mapping, Sequence
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


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return the table of rows, a mapping each; times are nanoseconds since 1970, and what a row lacks is null."""
    if not rows:
        return pa.Table.from_batches([], schema)
    import polars as pl

    numbers = [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in schema]
    empty = pl.from_arrow(pa.Table.from_batches([], pa.schema(numbers)))
    assert isinstance(empty, pl.DataFrame)
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    return pl.DataFrame(columns, schema=empty.schema).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)
