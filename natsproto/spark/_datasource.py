"""The data source "nats", behind ``format("nats")``: checks the options and chooses the reader or writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from natsproto.errors import ConfigError
from natsproto.spark._options import SinkOptions, SourceOptions
from natsproto.spark._schema import ROW_SCHEMA, ROW_SCHEMA_WITHOUT_HEADERS, check_columns
from natsproto.spark._sink import BatchWriter, StreamWriter, check_append
from natsproto.spark._source import BatchReader, PushdownReader, StreamReader
from natsproto.spark._writer import check_ids

_COLUMNS = [column.strip().split(" ")[0] for column in ROW_SCHEMA.split(", ")]


class NatsDataSource(DataSource):
    """Streams as tables, and tables into streams; see the guide for its options."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "nats"

    def schema(self) -> str:
        """The columns of a stream."""
        return ROW_SCHEMA if self._source.headers else ROW_SCHEMA_WITHOUT_HEADERS

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        settings = self._checked(schema)
        return PushdownReader(settings) if settings.pushdown else BatchReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return StreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        settings, _ = self._sink(schema, overwrite)
        return BatchWriter(settings)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        settings, columns = self._sink(schema, overwrite)
        return StreamWriter(settings, columns)

    @property
    def _source(self) -> SourceOptions:
        return SourceOptions.read(cast("Mapping[str, str]", self.options))

    def _checked(self, schema: StructType) -> SourceOptions:
        settings = self._source
        expected = [name for name in _COLUMNS if settings.headers or name != "headers"]
        if schema.names != expected:
            raise ConfigError("schema", ", ".join(schema.names), f"a stream has the columns {', '.join(expected)}")
        return settings

    def _sink(self, schema: StructType, overwrite: bool) -> tuple[SinkOptions, list[tuple[str, str]]]:
        check_append(overwrite)
        settings = SinkOptions.read(cast("Mapping[str, str]", self.options))
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_columns(columns, subject=settings.subject)
        check_ids([name for name, _ in columns], settings)
        return settings, columns
