"""The tutorial's notebook, run by a real kernel from the first cell to the last: by `make test-notebook` alone."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "spark-stream.ipynb"
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Watching(NotebookClient):
    """Keeps every picture that a cell shows, also those that a later one takes the place of."""

    def output(self, outs: Any, msg: Any, display_id: Any, cell_index: Any) -> Any:
        picture = msg["content"].get("data", {}).get("image/png")
        if picture is not None:
            self.pictures.append(base64.b64decode(picture))
        return super().output(outs, msg, display_id, cell_index)


def test_every_cell_runs_and_plots_are_drawn_as_records_arrive(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    client = Watching(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.pictures = []
    client.execute()
    assert len(set(client.pictures)) >= 5
    assert all(picture.startswith(b"\x89PNG") for picture in client.pictures)
    printed = [output.text for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]
    assert any("the stream is 0 behind" in text for text in printed), printed
