"""How Sphinx builds the site: `make docs`. Warnings are errors there, so a link that leads nowhere fails the build."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from kraftpy import __version__  # noqa: E402

project = "kraftpy"
copyright = "the kraftpy authors"  # noqa: A001
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "kraftpy_docs"]
exclude_patterns = ["_ext"]
source_suffix = {".md": "markdown"}
default_role = "code"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # pages of the root begin below a directive

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"kraftpy {release}"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
