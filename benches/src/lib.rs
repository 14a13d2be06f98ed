//! What the benchmarks share: figures with their bars, tables, JSON, curves.
