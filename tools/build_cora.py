"""Build src/fedmend/data/bundled/cora.npz from the Cora tables of the package graphdatascience.

    python tools/build_cora.py graphdatascience-2.2-py3-none-any.whl [OUT]

takes the wheel (`pip download --no-deps graphdatascience==2.2`) or the folder of an installed
package. The same tables give the same bytes (with the same zlib). Needs pyarrow; loading the
result does not.
"""

from __future__ import annotations

import ast
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fedmend.data.npz import read_npz
from fedmend.files import replacing

INSIDE = "graphdatascience/resources/cora"
OUT = Path(__file__).parents[1] / "src/fedmend/data/bundled/cora.npz"


def read(source: Path, name: str) -> bytes:
    """One file of the package, from a wheel or from a folder."""
    if source.is_file():
        with zipfile.ZipFile(source) as wheel:
            return wheel.read(f"{INSIDE}/{name}")
    inside = source / INSIDE if (source / INSIDE).is_dir() else source / "resources/cora"
    return (inside / name).read_bytes()


def subjects(source: Path) -> list[str]:
    """Class names in the order of their numbers, from the script that made the tables."""
    for statement in ast.parse(read(source, "serialize_cora.py")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="SUBJECT_TO_ID")], value=value):
                numbers: dict[str, int] = ast.literal_eval(value)
                return sorted(numbers, key=lambda name: numbers[name])
    raise SystemExit("serialize_cora.py has no SUBJECT_TO_ID any more")


def expect(what: str, value: int, wanted: int) -> None:
    if value != wanted:
        raise SystemExit(f"{what}: {value}, expected {wanted}")


def arrays(source: Path) -> dict[str, Any]:
    """Cora in the form of the GNN benchmark's files, citations in the direction given."""
    nodes = pq.read_table(io.BytesIO(read(source, "cora_nodes.parquet.gzip")))
    cites = pq.read_table(io.BytesIO(read(source, "cora_rels.parquet.gzip")))
    papers = nodes["nodeId"].to_numpy()
    expect("nodes", len(papers), 2708)
    expect("citations", len(cites), 5429)
    features = np.array(nodes["features"].to_pylist())
    expect("features", features.shape[1], 1433)
    if not np.isin(features, (0, 1)).all():
        raise SystemExit("features other than 0 and 1")
    names = subjects(source)
    expect("classes", len(names), 7)

    order = np.argsort(papers)
    ends = np.stack([cites["sourceNodeId"].to_numpy(), cites["targetNodeId"].to_numpy()])
    place = order[np.searchsorted(papers[order], ends)]
    if not (papers[place] == ends).all():
        raise SystemExit("a citation of a paper that is not in the table")
    source_place, target_place = place[:, np.lexsort((place[1], place[0]))]
    return {
        "adj_data": np.ones(len(cites), dtype=np.uint8),
        "adj_indices": target_place.astype(np.uint16),
        "adj_indptr": np.searchsorted(source_place, np.arange(len(papers) + 1)).astype(np.uint16),
        "adj_shape": np.array([len(papers)] * 2),
        "attr_data": np.ones(int(features.sum()), dtype=np.uint8),
        "attr_indices": np.nonzero(features)[1].astype(np.uint16),
        "attr_indptr": np.concatenate([[0], np.cumsum(features.sum(1))]).astype(np.uint32),
        "attr_shape": np.array(features.shape),
        "labels": nodes["subject"].to_numpy().astype(np.uint8),
        "class_names": np.array(names),
        "node_names": papers.astype(np.int32),
    }


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else OUT
    content = arrays(Path(sys.argv[1]))
    with replacing(out) as temporary:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, array in content.items():
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
                # np.savez would write the time of day; ZipInfo's own default is 1980.
                archive.writestr(
                    zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), zipfile.ZIP_DEFLATED, 9
                )
        graph = read_npz(temporary)
        expect("undirected edges", graph.num_edges, 5278)
        expect("nodes", graph.num_nodes, 2708)
        expect("features", graph.num_features, 1433)
        expect("classes", graph.num_classes, 7)
    print(f"{out}: {graph}, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
