"""Small helpers for the tests of sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.data.block import ReadRequest, Source
from paceline.data.dataset import Dataset
from paceline.data.formats import to_rows
from paceline.data.sources.csv_files import CsvSource
from paceline.data.sources.json_lines import JsonSource
from paceline.data.sources.lines import TextSource
from paceline.data.sources.listing import list_files


def table_of(source: Source, **request: Any) -> pa.Table:
    """All rows of a source."""
    chunks = [chunk for block in range(len(source.blocks())) for chunk in source.read(block, ReadRequest(**request))]
    schema = source.schema()
    if request.get("columns") is not None:
        schema = pa.schema([schema.field(name) for name in request["columns"]])
    return pa.Table.from_batches(chunks, schema=schema)


def rows_of(source: Source, **request: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table_of(source, **request).to_pylist()
    return rows


def check_pieces(source: Source, equal: Callable[[pa.Table, pa.Table], bool] = pa.Table.equals) -> None:
    """What holds for every source: any cut of a block into spans gives the block, in chunks that are small enough."""
    for block, known in enumerate(source.blocks()):
        whole = _read(source, block)
        if known.rows is not None:
            assert whole.num_rows == known.rows
        for cuts in ([1], [0, 2], [3, 5], [whole.num_rows - 1], [whole.num_rows]):
            edges = sorted({0, *(min(max(cut, 0), whole.num_rows) for cut in cuts), whole.num_rows})
            spans = [
                _read(source, block, start=start, stop=stop, chunk_rows=2)
                for start, stop in zip(edges, [*edges[1:-1], None], strict=False)
            ]
            assert equal(pa.concat_tables([*spans, whole.slice(0, 0)]), whole)
        assert sum(chunk.num_rows for chunk in source.read(block, ReadRequest(columns=()))) == whole.num_rows
        for name in source.schema().names:
            assert equal(_read(source, block, columns=(name,)), whole.select([name]))
        backwards = tuple(reversed(source.schema().names))
        assert equal(_read(source, block, columns=backwards), whole.select(backwards))


def _read(source: Source, block: int, **request: Any) -> pa.Table:
    asked = ReadRequest(**request)
    chunks = list(source.read(block, asked))
    assert all(chunk.num_rows <= asked.chunk_rows for chunk in chunks)
    schema = source.schema()
    if asked.columns is not None:
        schema = pa.schema([schema.field(name) for name in asked.columns])
    for chunk in chunks:
        assert chunk.schema.equals(schema, check_metadata=True)
    return pa.Table.from_batches(chunks, schema=schema)


def write_parts(directory: Path, files: int, rows: int = 20, row_group_size: int = 5) -> list[Path]:
    """Parquet files part-0.parquet ... whose ids count on through all of them."""
    directory.mkdir(exist_ok=True)
    paths = []
    for part in range(files):
        ids = list(range(part * rows, (part + 1) * rows))
        table = pa.table({"id": ids, "half": [number / 2 for number in ids], "name": [f"n{number}" for number in ids]})
        paths.append(directory / f"part-{part}.parquet")
        pq.write_table(table, paths[-1], row_group_size=row_group_size, compression="none", use_dictionary=False)
    return paths


def csv_of(path: Path | list[Path], parallelism: int = -1, **options: Any) -> CsvSource:
    return CsvSource(list_files(path), parallelism, options)


def json_of(path: Path | list[Path], parallelism: int = -1, **options: Any) -> JsonSource:
    return JsonSource(list_files(path), parallelism, options)


def text_of(path: Path, parallelism: int = -1, encoding: str = "utf-8", drop_empty_lines: bool = True) -> TextSource:
    return TextSource(list_files(path), parallelism, encoding, drop_empty_lines)


def plan_of(dataset: Any) -> Source:
    assert isinstance(dataset, Dataset)
    source: Source = dataset.plan
    return source


def dataset_rows(dataset: Any, **request: Any) -> list[dict[str, Any]]:
    source = plan_of(dataset)
    chunks = (chunk for block in range(len(source.blocks())) for chunk in source.read(block, ReadRequest(**request)))
    return [row for chunk in chunks for row in to_rows(chunk)]


def dataset_column(dataset: Any, name: str, **request: Any) -> list[Any]:
    return [row[name] for row in dataset_rows(dataset, **request)]


def hugging_face_rows() -> Any:
    import datasets  # takes a second or two

    features = datasets.Features(
        {"a": datasets.Value("int32"), "s": datasets.Value("string"), "m": datasets.Array2D((2, 2), "float32")}
    )
    columns = {"a": list(range(10)), "s": [str(n) for n in range(10)], "m": [[[n, 0], [0, n]] for n in range(10)]}
    return datasets.Dataset.from_dict(columns, features=features)
