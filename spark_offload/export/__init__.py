"""History as tables: Parquet files in an object store, or an Apache Iceberg table. See docs/export.md."""
