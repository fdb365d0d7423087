"""The data source "latchwork": a sharded queue as a table to read, and as a sink to write to.

Spark starts a new Python process for each step of a query's planning, and the process imports this module. So each
method imports only the modules that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..errors import InvalidRequest
from ..plain import shown
from .options import Options, parse

if TYPE_CHECKING:
    from .sink import BatchWriter, StreamWriter
    from .source import BatchReader, StreamReader


class LatchworkSource(DataSource):
    """The data source `format("latchwork")`; its options are listed in docs/design.md section 4."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "latchwork"

    def schema(self) -> str:
        """Return the columns of a read."""
        from .table import schema_of  # noqa: PLC0415 - see the module's docstring

        options = parse(self.options)
        return schema_of(options, options.open().codec)

    def reader(self, schema: StructType) -> BatchReader:
        """Return a snapshot; see `BatchReader`. Refuses a schema that is not the queue's, and shards that it
        has not.
        """
        from .source import BatchReader  # noqa: PLC0415 - see the module's docstring
        from .table import table_of  # noqa: PLC0415 - see the module's docstring

        options = self._options()
        queue = options.open()
        if options.shards is not None and options.shards[-1] >= queue.pointers.shards:
            raise InvalidRequest(
                f"the option 'shards' names shard {options.shards[-1]}, and {shown(options.queue)} has the shards 0 to "
                f"{queue.pointers.shards - 1}"
            )
        return BatchReader(options, table_of(schema, options, queue.codec))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream. Refuses one without `streamId`, and a schema that is not the queue's."""
        from .source import StreamReader  # noqa: PLC0415 - see the module's docstring
        from .table import table_of  # noqa: PLC0415 - see the module's docstring

        options = self._options()
        if not options.stream_id:
            raise InvalidRequest(
                "the option 'streamId' is missing: give the stream a name, and start it again under that name; while "
                "it runs, no other consumer gets messages of the queue"
            )
        if options.shards is not None:
            raise InvalidRequest("the option 'shards' is for batch reads: a stream owns all shards of its queue")
        return StreamReader(options, table_of(schema, options, options.open().codec))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a frame. Refuses a write without `jobId`, an overwrite, and rows that are no
        messages.
        """
        from .sink import BatchWriter, rows_of  # noqa: PLC0415 - see the module's docstring

        options = self._options_of_write()
        if overwrite:
            raise InvalidRequest("a queue cannot be overwritten: write with .mode('append')")
        if not options.job_id:
            raise InvalidRequest(
                "the option 'jobId' is missing: Spark gives a batch write no identity, so give each write a name, and "
                "run it again under that name"
            )
        return BatchWriter(options, rows_of(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's
        """Return the writer of a stream. Refuses the output mode `complete`, and rows that are no messages."""
        from .sink import StreamWriter, rows_of  # noqa: PLC0415 - see the module's docstring

        options = self._options_of_write()
        if overwrite:
            raise InvalidRequest("a queue cannot be overwritten: use .outputMode('append') or 'update'")
        return StreamWriter(options, rows_of(schema, options))

    def _options_of_write(self) -> Options:
        """Return the options, for a queue that can be published to."""
        options = parse(self.options)
        if options.open().reader:
            raise InvalidRequest(
                f"{shown(options.queue)} is a group, and a group publishes nothing: write to its queue"
            )
        return options

    def _options(self) -> Options:
        """Return the options, for a queue that is there."""
        options = parse(self.options)
        options.open()
        return options
