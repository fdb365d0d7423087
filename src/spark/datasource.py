"""The data source "latchwork": a sharded queue as a table to read, and as a sink to write to."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..errors import InvalidRequest
from ..plain import shown
from ..queue.sharded.queue import QueueGroup
from .options import Options, parse
from .sink import BatchWriter, StreamWriter, rows_of
from .source import BatchReader, StreamReader
from .table import schema_of, table_of


class LatchworkSource(DataSource):
    """`format("latchwork")`; the options are those of docs/design.md section 4."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "latchwork"

    def schema(self) -> str:
        """The columns of a read."""
        options = parse(self.options)
        return schema_of(options, options.open().codec)

    def reader(self, schema: StructType) -> BatchReader:
        """A snapshot; see `BatchReader`. Refuses a schema that is not the queue's, and shards that it has not."""
        options = self._options()
        queue = options.open()
        if options.shards is not None and options.shards[-1] >= queue.pointers.shards:
            raise InvalidRequest(
                f"the option 'shards' names shard {options.shards[-1]}, and {shown(options.queue)} has the shards 0 to "
                f"{queue.pointers.shards - 1}"
            )
        return BatchReader(options, table_of(schema, options, queue.codec))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Refuses a stream without `streamId`, and a schema that is not the queue's."""
        options = self._options()
        if not options.stream_id:
            raise InvalidRequest(
                "the option 'streamId' is missing: a name for this stream, the same when it is started again; the "
                "queue is its own while it runs"
            )
        if options.shards is not None:
            raise InvalidRequest("the option 'shards' is for batch reads: a stream owns all shards of its queue")
        return StreamReader(options, table_of(schema, options, options.open().codec))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Refuses a write without `jobId`, an overwrite, and rows that are no messages."""
        options = self._options_of_write()
        if overwrite:
            raise InvalidRequest("a queue cannot be overwritten: write with .mode('append')")
        if not options.job_id:
            raise InvalidRequest(
                "the option 'jobId' is missing: a name for this very write, the same when it is run again, as Spark "
                "gives a batch write no identity"
            )
        return BatchWriter(options, rows_of(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's
        """Refuses the output mode `complete`, and rows that are no messages."""
        options = self._options_of_write()
        if overwrite:
            raise InvalidRequest("a queue cannot be overwritten: use .outputMode('append') or 'update'")
        return StreamWriter(options, rows_of(schema, options))

    def _options_of_write(self) -> Options:
        """The options, for a queue that can be published to."""
        options = parse(self.options)
        if isinstance(options.open(), QueueGroup):
            raise InvalidRequest(
                f"{shown(options.queue)} is a group, and a group publishes nothing: write to its queue"
            )
        return options

    def _options(self) -> Options:
        """The options, for a queue that is there."""
        options = parse(self.options)
        options.open()
        return options
